// SPDX-License-Identifier: Apache-2.0
// Brings the operands of one block of K after another to the stages of the pipeline.
#pragma once

#include "comet/sm80/instance.cuh"
#include "comet/sm80/ptx.cuh"
#include "comet/sm80/schedule.cuh"

namespace comet::sm80 {

// 16-byte chunk of a row at which chunk `chunk` of the operand lies: eight rows of one chunk, as
// ldmatrix reads them, fall into different banks.
template <bool kInt4>
__device__ __forceinline__ uint32_t operand_offset(unsigned row, unsigned chunk) {
  return kInt4 ? row * 64 + ((chunk ^ (row >> 1 & 3)) << 4)
               : row * 128 + ((chunk ^ (row & 7)) << 4);
}

template <class I>
class Loader {
 public:
  __device__ __forceinline__ Loader(const GemmParams& p, int begin)
      : p_(p), place_(TilePlace::of(p, begin / p.blocks)), block_(begin % p.blocks) {}

  // Starts the copies of the next block into the stage at shared address `stage`.
  __device__ __forceinline__ void fill(uint32_t stage) {
    const unsigned thread = reread_thread();
    copy_weights(stage + I::kWeights, thread);
    if (block_ < p_.int4_blocks) {
      copy_operand<true>(stage + I::kOperand, thread, block_ * 64);
      load_multiple(thread);
    } else {
      const int before = p_.int4_blocks * 64;
      copy_operand<false>(stage + I::kOperand, thread, before + (block_ - p_.int4_blocks) * 128);
    }
    if (++block_ == p_.blocks) {
      block_ = 0;
      place_.advance(p_);
    }
  }

  // Stores the multiples that the last `fill` asked for: bytes are no unit of asynchronous copies,
  // and a load that is stored at once would stall. After an INT8 block the value is of no use.
  __device__ __forceinline__ void store_multiple(uint32_t stage) const {
    const unsigned row = reread_thread();
    if (row >= I::kTokens) return;
    // The tokens of one lane side by side: [warp row][row % 8][fragment][row half].
    constexpr int kWarpTokens = I::kTokenFragments * kMmaTokens;
    const unsigned lane_row = row / kWarpTokens * 8 + row % 8, half = row % kWarpTokens / 8;
    store_shared(stage + I::kMultiples + (lane_row * I::kTokenFragments * 2 + half) * 4, multiple_);
  }

 private:
  __device__ __forceinline__ void copy_weights(uint32_t to, unsigned thread) {
    const size_t tile = static_cast<size_t>(place_.row_tile) * p_.blocks + block_;
    const uint8_t* from = p_.weights + tile * kTileBytes;
#pragma unroll
    for (int i = 0; i < kCodeBytes; i += kThreads * 16) {
      copy_async(to + i + thread * 16, from + i + thread * 16);
    }
    if (thread < 2 * kTileChannels / 16) {
      copy_async(to + kCodeBytes + thread * 16, from + kCodeBytes + thread * 16);
    }
  }

  template <bool kInt4>
  __device__ __forceinline__ void copy_operand(uint32_t to, unsigned thread, int offset) {
    constexpr int kChunks = kInt4 ? 4 : 8, kRows = kThreads / kChunks;
    const unsigned chunk = thread % kChunks;
    if (kRows > I::kTokens && thread / kChunks >= I::kTokens) return;
#pragma unroll
    for (int first = 0; first < I::kTokens; first += kRows) {
      const unsigned row = first + thread / kChunks;
      const int token = place_.token_tile * I::kTokens + row;
      const bool valid = token < p_.tokens;
      const uint8_t* from = p_.activations + static_cast<size_t>(valid ? token : 0) * p_.row_bytes +
                            offset + chunk * 16;
      copy_async(to + operand_offset<kInt4>(row, chunk), from, valid);
    }
  }

  __device__ __forceinline__ void load_multiple(unsigned row) {
    const int token = place_.token_tile * I::kTokens + row;
    if (row >= I::kTokens || token >= p_.tokens) return;
    multiple_ = p_.multiples[static_cast<size_t>(token) * p_.int4_blocks + block_];
  }

  const GemmParams& p_;
  TilePlace place_;
  int block_;
  int multiple_ = 0;
};

}  // namespace comet::sm80
