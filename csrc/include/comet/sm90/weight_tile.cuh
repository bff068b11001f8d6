// SPDX-License-Identifier: Apache-2.0
// The weight tile of sm_90a: 64 output channels x 128 input channels, 4224 bytes.
//
//   4096 bytes of codes: word [warp 4][half 2][lane 32][k32 step 2][row half 2]. A lane's four
//   words
//        of one half are one 16-byte load. A word holds eight codes of one channel: low nibbles
//        k..k+3, high nibbles k+16..k+19, which are two registers of the wgmma A fragment.
//   128 bytes of scales: (s, 255 - s * z) of each channel.
//
// Fragment rows g and g + 8 of a warp are its channels 2g and 2g + 1, so that a thread owns two
// neighbours and stores them as one word. Tiles of one 64-channel row follow each other along K:
// the layout does not depend on how a kernel cuts N or K.
#pragma once

#include <stdint.h>

namespace comet::sm90 {

constexpr int kTileChannels = 64;
constexpr int kTileK = 128;
constexpr int kTileCodeBytes = kTileChannels * kTileK / 2;
constexpr int kTileBytes = kTileCodeBytes + 2 * kTileChannels;
constexpr int kHalfBytes = 512;   // 64 of K for one warp
constexpr int kWarpBytes = 1024;  // 128 of K for one warp

// Where a thread of a warpgroup finds its codes and the scales of its two channels in a tile.
struct TileLane {
  uint32_t codes;
  uint32_t scales;

  __device__ __forceinline__ static TileLane of(int thread) {
    const uint32_t warp = thread / 32, lane = thread % 32;
    return {warp * kWarpBytes + lane * 16, kTileCodeBytes + warp * 32 + lane / 4 * 4};
  }
};

// What turns four packed codes into four u8 operands: u * s + (128 - s * z), a byte each.
//
// The quantizer guarantees that every result fits 0..255, so one multiply-add of whole words is
// exact: intermediate borrows between bytes cancel modulo 2^32.
struct TileScale {
  uint32_t scale0, offset0;  // channel 2g
  uint32_t scale1, offset1;  // channel 2g + 1

  __device__ __forceinline__ static TileScale of(uint32_t packed) {
    constexpr uint32_t kBias = 0x7F7F7F7F;  // 255 - s * z stored, 128 - s * z wanted
    return {packed & 0xFF, __byte_perm(packed, 0, 0x1111) - kBias, packed >> 16 & 0xFF,
            __byte_perm(packed, 0, 0x3333) - kBias};
  }
};

// The A fragment of one k32 step from a lane's two words.
__device__ __forceinline__ void unpack_step(uint32_t (&a)[4], uint32_t word0, uint32_t word1,
                                            const TileScale& t) {
  constexpr uint32_t kLow = 0x0F0F0F0F;
  a[0] = (word0 & kLow) * t.scale0 + t.offset0;
  a[1] = (word1 & kLow) * t.scale1 + t.offset1;
  a[2] = (word0 >> 4 & kLow) * t.scale0 + t.offset0;
  a[3] = (word1 >> 4 & kLow) * t.scale1 + t.offset1;
}

}  // namespace comet::sm90
