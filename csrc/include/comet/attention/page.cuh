// SPDX-License-Identifier: Apache-2.0
// One page of the KV4 cache: 64 tokens of one KV head (comet/formats/kv4.py packs the same bytes).
//
//   K codes 32 D | K scale 2 D | K zero 2 D | V codes 32 D | V scale 128 | V zero 128
//
// Scale and zero are fp16, by channel for K and by token for V. Codes lie as mma.m16n8k16 wants its
// first operand: the four bytes of a thread for one 16 x 16 tile hold its eight codes, 16 bytes
// four tiles. Byte 2 i + k of the four has column 2 t + i + 8 k, in its low nibble row g and in its
// high nibble row g + 8 (g = lane / 4, t = lane % 4). So one mask gives two codes of a register,
// and one byte of V belongs to one token.
//
// A tile of 16 tokens is the same for K, where tokens are rows, and for V, where they are columns:
// place 2 t + b + 8 h of tile s is token 16 t + 4 s + 2 h + b. A thread's tokens lie side by side.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

namespace comet::kv4 {

constexpr int kPage = 64;         // tokens
constexpr int kTokenTiles = 4;    // tiles of 16 tokens
constexpr int kChunkBytes = 512;  // 16 bytes for each lane of a warp

// Where one code lies: `byte` of the page, and the nibble of that byte.
struct CodePlace {
  int byte;
  int nibble;
};

template <int kDim>
struct Page {
  static_assert(kDim == 64 || kDim == 128);
  static constexpr int kKeyCodes = 0;
  static constexpr int kKeyScale = kPage * kDim / 2;
  static constexpr int kKeyZero = kKeyScale + 2 * kDim;
  static constexpr int kValueCodes = kKeyZero + 2 * kDim;
  static constexpr int kValueScale = kValueCodes + kPage * kDim / 2;
  static constexpr int kValueZero = kValueScale + 2 * kPage;
  static constexpr int kBytes = kValueZero + 2 * kPage;

  static constexpr int kKeyTiles = kDim / 16;     // 16 channels each; four of them a 32 bytes
  static constexpr int kValueTiles = kDim / 16;   // a thread's channels are kDim / 8 in a row
  static constexpr int kValueChunks = kDim / 64;  // of one tile of tokens
  static constexpr int kLaneChannels = kDim / 8;  // of one output row

  // K: channels 32 j + 8 t + 4 u + 2 k + i are columns of tile 2 j + u; a chunk is one such tile,
  // its words the tiles of tokens.
  static __host__ __device__ constexpr CodePlace key_code(int token, int channel) {
    const int lane = (2 * (token / 16) + token % 2) * 4 + channel % 32 / 8;
    const int tile = 2 * (channel / 32) + channel % 8 / 4;
    const int byte = 2 * (channel % 2) + channel % 4 / 2;
    return {kKeyCodes + tile * kChunkBytes + lane * 16 + token % 16 / 4 * 4 + byte, token % 4 / 2};
  }

  // V: channels kDim / 8 * g + 2 i + r are row g + 8 r of tile i; a chunk is one tile of tokens and
  // four tiles of channels, its words.
  static __host__ __device__ constexpr CodePlace value_code(int token, int channel) {
    const int lane = channel / kLaneChannels * 4 + token / 16;
    const int tile = channel % kLaneChannels / 2;
    const int byte = 2 * (token % 2) + token % 4 / 2;
    const int chunk = token % 16 / 4 * kValueChunks + tile / 4;
    return {kValueCodes + chunk * kChunkBytes + lane * 16 + tile % 4 * 4 + byte, channel % 2};
  }
};

// First token that a lane's scores of tile 0 belong to; tile s is 4 s further, rows g + 8 two more.
__host__ __device__ constexpr int first_token(int lane) { return lane / 8 * 16 + lane / 4 % 2; }

// Pages of a sequence that a query sees.
struct Span {
  int first, count;
};

__host__ __device__ constexpr Span span_of(int length, int window) {
  const int first = window > 0 && length > window ? (length - window) / kPage : 0;
  return {first, (length + kPage - 1) / kPage - first};
}

}  // namespace comet::kv4
