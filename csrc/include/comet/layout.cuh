// SPDX-License-Identifier: Apache-2.0
// Where a 4-byte word of an activation row lies in each operand layout.
#pragma once

namespace comet {

constexpr int kBlock = 128;     // channels that share a precision and a scale
constexpr int kTokenAlign = 8;  // the sm_90a operand has whole groups of 8 token rows

__host__ __device__ constexpr int padded_tokens(int tokens) {
  return (tokens + kTokenAlign - 1) / kTokenAlign * kTokenAlign;
}

// sm_90a: int8 [Kp/128][padded tokens][128], the 16-byte chunks of a row permuted by XOR with
// row & 7: the 128-byte swizzle that wgmma reads without bank conflicts. `byte` is 0..127.
__device__ __forceinline__ size_t operand_sm90(int block, int token, int byte, int padded) {
  const int swizzled = byte ^ ((token & 7) << 4);
  return (static_cast<size_t>(block) * padded + token) * kBlock + swizzled;
}

// sm_80: a row holds its INT4 blocks as nibbles (64 bytes each, even channel low), then its INT8
// blocks (128 bytes each).
__host__ __device__ constexpr int row_bytes_sm80(int int4_blocks, int int8_blocks) {
  return int4_blocks * (kBlock / 2) + int8_blocks * kBlock;
}

}  // namespace comet
