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
//
// Build variants measure what these choices are worth (paper, figure 13): codes in natural order,
// 64 bytes a channel, even K low; and conversion of one code at a time.
#pragma once

#include "comet/sm90/ptx.cuh"

#ifndef COMET_W4AX_SM90_INTERLEAVED
#define COMET_W4AX_SM90_INTERLEAVED 1
#endif
#ifndef COMET_W4AX_SM90_FAST_CONVERSION
#define COMET_W4AX_SM90_FAST_CONVERSION 1
#endif

namespace comet::sm90 {

constexpr bool kInterleaved = COMET_W4AX_SM90_INTERLEAVED != 0;
constexpr bool kFastConversion = COMET_W4AX_SM90_FAST_CONVERSION != 0;
static_assert(kInterleaved || kFastConversion, "one variant at a time");

constexpr int kTileChannels = 64;
constexpr int kTileK = 128;
constexpr int kTileCodeBytes = kTileChannels * kTileK / 2;
constexpr int kTileBytes = kTileCodeBytes + 2 * kTileChannels;
constexpr int kHalfBytes = 512;   // 64 of K for one warp
constexpr int kWarpBytes = 1024;  // 128 of K for one warp
constexpr int kChannelBytes = kTileK / 2;

// Where a thread of a warpgroup finds its codes and the scales of its two channels in a tile.
struct TileLane {
  uint32_t codes;
  uint32_t scales;

  __device__ __forceinline__ static TileLane of(int thread) {
    const uint32_t warp = thread / 32, lane = thread % 32;
    const uint32_t codes = kInterleaved ? lane * 16 : lane / 4 * 2 * kChannelBytes + lane % 4 * 2;
    return {warp * kWarpBytes + codes, kTileCodeBytes + warp * 32 + lane / 4 * 4};
  }
};

// Natural order: codes k..k+3 to the low half of a word, k+16..k+19 to its high half.
__device__ __forceinline__ uint32_t gather_word(uint32_t from) {
  return __byte_perm(load_shared2(from), load_shared2(from + 8), 0x5410);
}

// A lane's words of 64 of K: two k32 steps, in each one word of either channel.
__device__ __forceinline__ uint4 load_half(uint32_t tile, const TileLane& lane, int half) {
  if constexpr (kInterleaved) {
    return load_shared4(tile + lane.codes + half * kHalfBytes);
  } else {
    const uint32_t from = tile + lane.codes + half * 32;
    return {gather_word(from), gather_word(from + kChannelBytes), gather_word(from + 16),
            gather_word(from + kChannelBytes + 16)};
  }
}

// What turns four packed codes into four u8 operands: u * s + (128 - s * z), a byte each.
//
// The quantizer guarantees that every result fits 0..255, so one multiply-add of whole words is
// exact: intermediate borrows between bytes cancel modulo 2^32.
struct TileScale {
  uint32_t scale0, offset0;  // channel 2g
  uint32_t scale1, offset1;  // channel 2g + 1

  __device__ __forceinline__ static TileScale of(uint32_t packed) {
    constexpr uint32_t kBias = 0x7F7F7F7F;  // 255 - s * z stored, 128 - s * z wanted
    if constexpr (!kFastConversion) {       // one offset, not four
      return {packed & 0xFF, (packed >> 8 & 0xFF) - 0x7F, packed >> 16 & 0xFF,
              (packed >> 24) - 0x7F};
    } else {
      return {packed & 0xFF, __byte_perm(packed, 0, 0x1111) - kBias, packed >> 16 & 0xFF,
              __byte_perm(packed, 0, 0x3333) - kBias};
    }
  }
};

// Four codes, a byte each, to operands.
__device__ __forceinline__ uint32_t operands(uint32_t codes, uint32_t scale, uint32_t offset) {
  if constexpr (kFastConversion) {
    return codes * scale + offset;
  } else {
    uint32_t bytes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t code = codes >> (8 * j) & 0xF;
      bytes |= ((code * scale + offset) & 0xFF) << (8 * j);
    }
    return bytes;
  }
}

// The four codes in one half of a word, a byte each.
template <bool kHigh>
__device__ __forceinline__ uint32_t spread(uint32_t word) {
  if constexpr (kInterleaved) {
    return (kHigh ? word >> 4 : word) & 0x0F0F0F0F;
  } else {
    const uint32_t pairs = __byte_perm(word, 0, kHigh ? 0x3322 : 0x1100);
    return (pairs & 0x000F000F) | (pairs >> 4 & 0x0F000F00);
  }
}

// The A fragment of one k32 step from a lane's two words.
__device__ __forceinline__ void unpack_step(uint32_t (&a)[4], uint32_t word0, uint32_t word1,
                                            const TileScale& t) {
  a[0] = operands(spread<false>(word0), t.scale0, t.offset0);
  a[1] = operands(spread<false>(word1), t.scale1, t.offset1);
  a[2] = operands(spread<true>(word0), t.scale0, t.offset0);
  a[3] = operands(spread<true>(word1), t.scale1, t.offset1);
}

}  // namespace comet::sm90
