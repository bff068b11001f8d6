// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that keeps the ring of stages filled with bulk copies.
#pragma once

#include "comet/sm90/ring.cuh"

namespace comet::sm90 {

template <class I>
class Producer {
 public:
  __device__ __forceinline__ Producer(const GemmParams& p, uint32_t shared)
      : p_(p), shared_(shared) {}

  __device__ __forceinline__ void run() {
    const WorkList<I::kSchedule> list(p_);
    Work work;
    for (int index = 0; list.template get<I::kStageBlocks>(index, work); ++index) {
      const TilePlace place = tile_place(p_, work.tile);
      enter(work, place);
      int step = index == 0 ? prefetch() : 0;
#pragma unroll 1
      for (; step < steps_; ++step) {
        barrier_wait(shared_ + I::kEmpty + ring_.stage * 8, ring_.phase ^ 1);
        fetch_weights(step, ring_.stage);
        fetch_activations(step, ring_.stage);
        ring_.template advance<I::kStages>();
      }
    }
  }

 private:
  // A step fills one stage. The INT4 and the INT8 part of K start a stage each.
  struct Step {
    int block, blocks;
  };

  __device__ __forceinline__ void enter(const Work& work, const TilePlace& place) {
    boundary_ = min(max(p_.int4_blocks, work.begin), work.end);
    begin_ = work.begin;
    end_ = work.end;
    steps4_ = (boundary_ - begin_ + I::kStageBlocks - 1) / I::kStageBlocks;
    steps_ = steps4_ + (end_ - boundary_ + I::kStageBlocks - 1) / I::kStageBlocks;
    const int row = place.row_tile * I::kTileRows;
    rows_ = min(I::kTileRows, p_.channel_tiles - row);
    weights_ = p_.weights + static_cast<size_t>(row) * p_.blocks * kTileBytes;
    const int token = place.token_tile * I::kTokens;
    operand_bytes_ = min(I::kTokens, p_.padded_tokens - token) * kTileK;
    activations_ = p_.activations + static_cast<size_t>(token) * kTileK;
  }

  __device__ __forceinline__ Step step_at(int step) const {
    if constexpr (I::kStageBlocks == 1) return {begin_ + step, 1};
    const bool int8 = step >= steps4_;
    const int block =
        int8 ? boundary_ + (step - steps4_) * I::kStageBlocks : begin_ + step * I::kStageBlocks;
    return {block, min(I::kStageBlocks, (int8 ? end_ : boundary_) - block)};
  }

  // Weights do not depend on the kernel in front: the first stages are fetched while it still runs.
  __device__ __forceinline__ int prefetch() {
    const int ahead = min(min(p_.prefetch, I::kStages), steps_);
#pragma unroll 1
    for (int step = 0; step < ahead; ++step) fetch_weights(step, step);
    wait_dependencies();
#pragma unroll 1
    for (int step = 0; step < ahead; ++step) {
      fetch_activations(step, step);
      ring_.template advance<I::kStages>();
    }
    return ahead;
  }

  __device__ __forceinline__ void fetch_weights(int step, int stage) {
    const Step s = step_at(step);
    const uint32_t full = shared_ + I::kFull + stage * 8;
    const uint32_t bytes = s.blocks * kTileBytes;
    barrier_arrive_expect(full, rows_ * bytes + s.blocks * operand_bytes_);
    uint32_t destination = shared_ + I::kWeights + stage * I::kStageWeightBytes;
    const uint8_t* source = weights_ + static_cast<size_t>(s.block) * kTileBytes;
#pragma unroll
    for (int row = 0; row < I::kTileRows; ++row) {
      if (row < rows_) bulk_copy(destination, source, bytes, full, evict_first_);
      destination += I::kStageBlocks * kTileBytes;
      source += static_cast<size_t>(p_.blocks) * kTileBytes;
    }
  }

  __device__ __forceinline__ void fetch_activations(int step, int stage) {
    const Step s = step_at(step);
    const uint32_t full = shared_ + I::kFull + stage * 8;
    const uint32_t destination = shared_ + I::kOperands + stage * I::kStageOperandBytes;
    const size_t block_bytes = static_cast<size_t>(p_.padded_tokens) * kTileK;
    const uint8_t* source = activations_ + s.block * block_bytes;
#pragma unroll
    for (int b = 0; b < I::kStageBlocks; ++b) {
      if (b >= s.blocks) break;
      bulk_copy(destination + b * I::kOperandBytes, source + b * block_bytes, operand_bytes_, full,
                evict_last_);
    }
  }

  const GemmParams& p_;
  const uint32_t shared_;
  // Without these hints the weights, read once, push the activations out of the L2 cache.
  const uint64_t evict_first_ = policy_evict_first();
  const uint64_t evict_last_ = policy_evict_last();
  Ring ring_;
  int begin_, boundary_, end_, steps4_, steps_, rows_;
  uint32_t operand_bytes_;
  const uint8_t *weights_, *activations_;
};

}  // namespace comet::sm90
