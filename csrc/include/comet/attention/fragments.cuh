// SPDX-License-Identifier: Apache-2.0
// 4-bit codes to operands of the tensor cores, without a bias and without a multiplication.
//
// A nibble in the lowest bits of a 16-bit float is that many times 2^-24, a subnormal number that
// tensor cores multiply exactly, and so is the whole byte of which it is the low half. So one
// instruction takes the even bytes of a word, one the odd bytes, and a mask each their low nibbles:
// four instructions for eight codes. Rows g + 8 of the operand are the low nibbles, rows g the
// bytes; `separate` takes their sums apart.
#pragma once

#include "comet/attention/instructions.cuh"

namespace comet::kv4 {

constexpr float kUnit = 0x1p-24f;        // of low nibbles
constexpr float kUnit8 = 0x1p-20f;       // of high nibbles
constexpr uint32_t kOnes = 0x3c003c00u;  // two halves

// d += codes * b, for the 16 x 16 codes of which `word` is this lane's part. Elements 2 and 3 of d
// are sums over low nibbles, elements 0 and 1 over low nibbles + 16 * high nibbles.
__device__ __forceinline__ void mma_codes(float (&d)[4], uint32_t word, uint32_t b0, uint32_t b1) {
  const uint32_t even = word & 0x00ff00ffu, odd = odd_bytes(word);
  mma<Fp16>(d, even, even & 0x000f000fu, odd, odd & 0x000f000fu, b0, b1);
}

// Sums that `mma_codes` left in elements e and e + 2: of low nibbles in units of kUnit, of high
// nibbles in units of kUnit8, which the difference leaves as exact as they are in the sum.
__device__ __forceinline__ float2 separate(const float (&d)[4], int e) {
  return make_float2(d[2 + e], d[e] - d[2 + e]);
}

__device__ __forceinline__ uint32_t word_of(const uint4& chunk, int index) {
  return index == 0 ? chunk.x : index == 1 ? chunk.y : index == 2 ? chunk.z : chunk.w;
}

}  // namespace comet::kv4
