// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup: unpacks weights into wgmma fragments, multiplies, finishes its channels.
#pragma once

#include "comet/sm90/epilogue.cuh"
#include "comet/sm90/share.cuh"
#include "comet/sm90/sums.cuh"

namespace comet::sm90 {

template <class I>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const GemmParams& p, uint32_t shared)
      : p_(p),
        shared_(shared),
        epilogue_(p, shared),
        warpgroup_(__shfl_sync(0xffffffff, threadIdx.x / 128, 0)),
        thread_(threadIdx.x % 128),
        lane_(TileLane::of(threadIdx.x % 128)) {
    sums_.parked_shared =
        shared + I::kParked + warpgroup_ * I::kSharedChunks * 128 * 16 + thread_ * 16;
  }

  __device__ __forceinline__ void run() {
    wait_dependencies();
    WorkList<I::kSchedule> list(p_);
    Work work;
    while (list.template next<I::kStageBlocks>(work)) {
      named_barrier(1 + warpgroup_, 128);  // the terms of the tile before are no longer read
      epilogue_.load_terms(tile_place(p_, work.tile), warpgroup_, thread_);
      const Classes classes = multiply_both(work);
      if constexpr (I::kSchedule == Schedule::kCluster) {
        if (p_.split > 1) {
          share_in_cluster<I>(p_, shared_, sums_, classes, epilogue_);
          continue;
        }
      } else if (work.end < p_.blocks) {
        hand_on<I>(p_, sums_, classes, warpgroup_, thread_);
        continue;
      }
      finish(work, classes);
    }
  }

 private:
  // Both parts of a run of K. With two classes the INT4 sums end up parked.
  __device__ __forceinline__ Classes multiply_both(const Work& work) {
    const int boundary = min(max(p_.int4_blocks, work.begin), work.end);
    const Classes classes = {boundary > work.begin, work.end > boundary};
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const int blocks = part == 0 ? boundary - work.begin : work.end - boundary;
      if (blocks == 0) continue;
      if (part == 1 && classes.int4) sums_.park();
      multiply(blocks);
    }
    return classes;
  }

  // Sums of consecutive K blocks into the running set.
  __device__ __forceinline__ void multiply(int blocks) {
    // Zeros are written rather than left to the first wgmma: with a predicate there, and other code
    // that writes the sums elsewhere, ptxas serialises the pipeline (C7515).
#pragma unroll
    for (int i = 0; i < I::kRows * I::kSums; ++i) sums_.value(i) = 0;
    uint32_t fragment[2][I::kRows][I::kGroupSteps][4];
    int previous = -1;
    const int whole = blocks / I::kStageBlocks;
    for (int i = 0; i < whole; ++i) multiply_stage<I::kStageBlocks>(fragment, previous);
    if constexpr (I::kStageBlocks > 1) {
      if (blocks % I::kStageBlocks != 0) multiply_stage<1>(fragment, previous);
    }
    wgmma_wait<0>();
    sums_.pin_running();
    release(previous);
  }

  // One stage of the ring, of which kBlocks blocks are filled. The codes of a group are unpacked
  // while the tensor cores work on the group before: two sets of fragment registers.
  template <int kBlocks>
  __device__ __forceinline__ void multiply_stage(
      uint32_t (&fragment)[2][I::kRows][I::kGroupSteps][4], int& previous) {
    constexpr int kGroups = 4 / I::kGroupSteps;
    TileScale scale[I::kRows];
    barrier_wait(shared_ + I::kFull + ring_.stage * 8, ring_.phase);
    const uint32_t weights = shared_ + I::kWeights + ring_.stage * I::kStageWeightBytes +
                             warpgroup_ * I::kRows * I::kStageBlocks * kTileBytes;
    // The broadcast tells the compiler that descriptors are uniform.
    const uint64_t operand = operand_descriptor(
        shared_ + I::kOperands + __shfl_sync(0xffffffff, ring_.stage, 0) * I::kStageOperandBytes);
#pragma unroll
    for (int i = 0; i < kBlocks * kGroups; ++i) {
      const int block = i / kGroups, group = i % kGroups;
      auto& a = fragment[i % 2];
      unpack(a, scale, weights + block * kTileBytes, group);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < I::kGroupSteps; ++step) {
        const int offset = (block * I::kOperandBytes >> 4) + (group * I::kGroupSteps + step) * 2;
#pragma unroll
        for (int row = 0; row < I::kRows; ++row) {
          wgmma<I::kTokens, false>(sums_.running[row], a[row][step], operand + offset);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i == 0) release(previous);
    }
    previous = ring_.stage;
    ring_.template advance<I::kStages>();
  }

  __device__ __forceinline__ void unpack(uint32_t (&a)[I::kRows][I::kGroupSteps][4],
                                         TileScale (&scale)[I::kRows], uint32_t weights,
                                         int group) {
#pragma unroll
    for (int row = 0; row < I::kRows; ++row) {
      const uint32_t tile = weights + row * I::kStageBlocks * kTileBytes;
      if (group == 0) scale[row] = TileScale::of(load_shared(tile + lane_.scales));
#pragma unroll
      for (int half = 0; half < I::kGroupSteps / 2; ++half) {
        const uint4 words = load_shared4(tile + lane_.codes +
                                         (group * I::kGroupSteps / 2 + half) * kHalfBytes);
        unpack_step(a[row][half * 2], words.x, words.y, scale[row]);
        unpack_step(a[row][half * 2 + 1], words.z, words.w, scale[row]);
      }
    }
  }

  // One arrival a warp: its reads of the stage are over.
  __device__ __forceinline__ void release(int stage) {
    if (stage < 0) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_ + I::kEmpty + stage * 8);
  }

  __device__ __forceinline__ void finish(const Work& work, const Classes& classes) {
    const bool two = p_.int4_blocks > 0 && p_.int4_blocks < p_.blocks;
    if (two && !classes.int4) sums_.park_zeros();
    if constexpr (I::kSchedule == Schedule::kStream) {
      collect<I>(p_, sums_, work, two, warpgroup_, thread_);
    }
    named_barrier(1 + warpgroup_, 128);  // the terms have arrived
    const auto running = [&](int c) { return sums_.chunk(c); };
    if (two) {
      epilogue_.template finish_all<true>([&](int c) { return sums_.parked_chunk(c); }, running);
    } else {
      epilogue_.template finish_all<false>(running, [](int) { return int4{0, 0, 0, 0}; });
    }
  }

  const GemmParams& p_;
  const uint32_t shared_;
  Epilogue<I> epilogue_;
  const int warpgroup_, thread_;
  const TileLane lane_;
  Ring ring_;
  Sums<I> sums_;
};

}  // namespace comet::sm90
