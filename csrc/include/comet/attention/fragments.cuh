// SPDX-License-Identifier: Apache-2.0
// 4-bit codes to operands of the tensor cores, without a bias and without a multiplication.
//
// A nibble in the lowest bits of a 16-bit float is that many times 2^-24, a subnormal number that
// tensor cores multiply exactly; four bits higher it is that many times 2^-20. So a mask makes two
// operands, and one shift brings the other two into place: five instructions for eight codes. Rows
// g + 8 come out 16 times as large as rows g; their sums are scaled where they are used.
#pragma once

#include "comet/attention/instructions.cuh"

namespace comet::kv4 {

constexpr float kUnit = 0x1p-24f;        // of codes in rows g
constexpr float kUnit8 = 0x1p-20f;       // of codes in rows g + 8
constexpr uint32_t kOnes = 0x3c003c00u;  // two halves

// d += codes * b, for the 16 x 16 codes of which `word` is this lane's part.
__device__ __forceinline__ void mma_codes(float (&d)[4], uint32_t word, uint32_t b0, uint32_t b1) {
  const uint32_t shifted = word >> 8;
  mma<Fp16>(d, word & 0x000f000fu, word & 0x00f000f0u, shifted & 0x000f000fu, shifted & 0x00f000f0u,
            b0, b1);
}

__device__ __forceinline__ uint32_t word_of(const uint4& chunk, int index) {
  return index == 0 ? chunk.x : index == 1 ? chunk.y : index == 2 ? chunk.z : chunk.w;
}

}  // namespace comet::kv4
