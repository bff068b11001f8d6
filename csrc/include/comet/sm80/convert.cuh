// SPDX-License-Identifier: Apache-2.0
// Signed 4-bit weights to the signed bytes of an INT8 tensor-core operand (paper, section 4.3).
//
// Fast: a nibble moved to the high half of its byte is 16 times the signed code, its sign included.
// With the codes interleaved, one mask gives four of them and one shift and mask the other four:
// three instructions for eight weights. The factor is taken off the integer sum, exactly.
// Naive: every nibble is shifted to the top of a register and back, which extends its sign.
#pragma once

#include <stdint.h>

namespace comet::sm80 {

constexpr uint32_t kHighNibbles = 0xf0f0f0f0u;

// Bits by which a sum of products with converted codes is larger than with the codes themselves.
template <bool kFast>
constexpr int kConversionShift = kFast ? 4 : 0;

// Nibble `index` of `word`, sign-extended, as byte `byte` of a register.
__device__ __forceinline__ uint32_t extended_nibble(uint32_t word, int index, int byte) {
  const int code = static_cast<int>(word << (28 - 4 * index)) >> 28;
  return (static_cast<uint32_t>(code) & 0xffu) << (8 * byte);
}

// Interleaved word: byte j holds code j of the first operand register in its low nibble and code j
// of the second one in its high nibble.
template <bool kFast>
__device__ __forceinline__ void convert_interleaved(uint32_t word, uint32_t& first,
                                                    uint32_t& second) {
  if constexpr (kFast) {
    first = (word << 4) & kHighNibbles;
    second = word & kHighNibbles;
  } else {
    first = second = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first |= extended_nibble(word, 2 * j, j);
      second |= extended_nibble(word, 2 * j + 1, j);
    }
  }
}

// Natural order: four consecutive codes in 16 bits to one operand register.
template <bool kFast>
__device__ __forceinline__ uint32_t convert_natural(uint32_t half) {
  if constexpr (kFast) {
    const uint32_t pairs = (half | half << 8) & 0x00ff00ffu;
    return ((pairs << 4) & 0x00f000f0u) | ((pairs << 8) & 0xf000f000u);
  } else {
    uint32_t bytes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) bytes |= extended_nibble(half, j, j);
    return bytes;
  }
}

}  // namespace comet::sm80
