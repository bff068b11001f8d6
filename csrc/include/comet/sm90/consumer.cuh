// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup: unpacks weights into wgmma fragments, multiplies, finishes its channels.
#pragma once

#include "comet/sm90/epilogue.cuh"
#include "comet/sm90/ring.cuh"
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
        lane_(TileLane::of(threadIdx.x % 128)) {
    sums_.parked_shared = shared + I::kParked + threadIdx.x * 16;
    ring_.stage = slice();
  }

  __device__ __forceinline__ void run() {
    wait_dependencies();
    const WorkList<I::kSchedule> list(p_);
    Work work;
    if constexpr (I::kSchedule == Schedule::kCluster) {
      list.template get<I::kStageBlocks>(0, work);
      const Classes classes = begin(work);
      if (I::kSlices > 1 || p_.split > 1) {
        share_in_cluster<I>(p_, shared_, sums_, classes, slice(), epilogue_);
      } else {
        finish(work, classes);
      }
    } else {
      stagger(list);
      // The broadcast keeps the counter in a uniform register.
      for (int index = 0; list.template get<I::kStageBlocks>(index, work);
           index = __shfl_sync(0xffffffff, index + 1, 0)) {
        const Classes classes = begin(work);
        if (work.end < p_.blocks) {
          hand_on<I>(p_, sums_, classes, warpgroup_);
          async_copies_wait();  // not needed, but they must not arrive after the next tile's
        } else {
          finish(work, classes);
        }
      }
    }
  }

 private:
  // Which turns at the stages are this warpgroup's, and which channels.
  __device__ __forceinline__ int slice() const {
    return I::kSlices == 1 ? 0 : warpgroup_ / I::kRowGroups;
  }
  __device__ __forceinline__ int row_group() const {
    return I::kSlices == 1 ? warpgroup_ : warpgroup_ % I::kRowGroups;
  }

  // Later warpgroups start some stages behind the first: their epilogues then fall into each
  // other's main loops, and the tensor cores do not rest.
  __device__ __forceinline__ void stagger(const WorkList<I::kSchedule>& list) const {
    const int stage = min(p_.stagger * warpgroup_, I::kStages - 1);
    Work first;
    if (stage == 0 || !list.template get<I::kStageBlocks>(0, first)) return;
    if ((first.end - first.begin) / I::kStageBlocks <= stage) return;  // it may never be filled
    barrier_wait(shared_ + I::kFull + stage * 8, 0);
  }

  // The integer sums of a piece of work; the terms of its tile are on their way.
  __device__ __forceinline__ Classes begin(const Work& work) {
    named_barrier(1 + warpgroup_, 128);  // the terms of the tile before are no longer read
    if (slice() == 0) epilogue_.fetch_terms(tile_place(p_, work.tile), row_group());
    return multiply_both(work);
  }

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

  // Registers of one group: packed words on their way, and unpacked fragments. Two sets of
  // fragments: the codes of a group are unpacked while the tensor cores work on the group before.
  struct Fragments {
    uint32_t a[2][I::kRows][I::kGroupSteps][4];
    uint4 words[I::kRows][I::kGroupSteps / 2];
    TileScale scale[I::kRows];
  };

  // Sums of consecutive K blocks into the running set.
  __device__ __forceinline__ void multiply(int blocks) {
    // Zeros are written rather than left to the first wgmma: with a predicate there, and other code
    // that writes the sums elsewhere, ptxas serialises the pipeline (C7515).
#pragma unroll
    for (int i = 0; i < I::kRows * I::kSums; ++i) sums_.value(i) = 0;
    Fragments f;
    int previous = -1;
    constexpr int kSecond = I::kStageBlocks * kGroups % 2;  // first set of every other stage
    int stages = blocks / I::kStageBlocks;
    bool half = I::kStageBlocks == 2 && blocks % 2 != 0;
    if constexpr (I::kSlices > 1) take_turns(stages, half);
    if constexpr (kSecond == 0) {
#pragma unroll 1
      for (; stages > 0; --stages) multiply_stage<I::kStageBlocks, 0>(f, previous);
    } else {
#pragma unroll 1
      for (; stages >= 2; stages -= 2) {
        multiply_stage<I::kStageBlocks, 0>(f, previous);
        multiply_stage<I::kStageBlocks, 1>(f, previous);
      }
      if (stages > 0) multiply_stage<I::kStageBlocks, 0>(f, previous);
    }
    if constexpr (I::kStageBlocks == 2) {
      if (half) multiply_stage<1, 0>(f, previous);
    }
    wgmma_wait<0>();
    sums_.pin_running();
    release(previous);
  }

  // Of full stages and a half filled one after them, those of this slice.
  __device__ __forceinline__ void take_turns(int& stages, bool& half) {
    constexpr int kMask = I::kSlices - 1;
    const int all = stages + half, before = (slice() - turn_) & kMask;
    half = half && ((all - 1 - before) & kMask) == 0;
    stages = (all - before + kMask) / I::kSlices - half;
    turn_ = (turn_ + all) & kMask;
  }

  static constexpr int kGroups = 4 / I::kGroupSteps;

  // One stage of the ring, of which kBlocks blocks are filled.
  template <int kBlocks, int kFirstSet>
  __device__ __forceinline__ void multiply_stage(Fragments& f, int& previous) {
    barrier_wait(shared_ + I::kFull + ring_.stage * 8, ring_.phase);
    const uint32_t weights = shared_ + I::kWeights + ring_.stage * I::kStageWeightBytes +
                             row_group() * I::kRows * I::kStageBlocks * kTileBytes;
    // The broadcast tells the compiler that descriptors are uniform.
    const uint64_t operand = operand_descriptor(
        shared_ + I::kOperands + __shfl_sync(0xffffffff, ring_.stage, 0) * I::kStageOperandBytes);
    load_words(f, weights, 0);
#pragma unroll
    for (int i = 0; i < kBlocks * kGroups; ++i) {
      auto& a = f.a[(i + kFirstSet) % 2];
      unpack(a, f);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < I::kGroupSteps; ++step) {
        const int offset =
            (i / kGroups * I::kOperandBytes >> 4) + (i % kGroups * I::kGroupSteps + step) * 2;
#pragma unroll
        for (int row = 0; row < I::kRows; ++row) {
          wgmma<I::kTokens>(sums_.running[row], a[row][step], operand + offset);
        }
      }
      wgmma_commit();
      if (i + 1 < kBlocks * kGroups) load_words(f, weights, i + 1);
      if constexpr (I::kOwnStages == 1) {
        wgmma_wait<0>();  // no other stage to go on with
      } else {
        wgmma_wait<1>();
        if (i == 0) release(previous);
      }
    }
    if constexpr (I::kOwnStages == 1) {
      release(ring_.stage);
    } else {
      previous = ring_.stage;
    }
    ring_.template advance<I::kStages, I::kSlices>();
  }

  // Packed words of group i of a stage, and the scales where a block begins.
  __device__ __forceinline__ void load_words(Fragments& f, uint32_t weights, int i) {
#pragma unroll
    for (int row = 0; row < I::kRows; ++row) {
      const uint32_t tile = weights + (row * I::kStageBlocks + i / kGroups) * kTileBytes;
      if (i % kGroups == 0) f.scale[row] = TileScale::of(load_shared(tile + lane_.scales));
#pragma unroll
      for (int half = 0; half < I::kGroupSteps / 2; ++half) {
        f.words[row][half] = load_half(tile, lane_, i % kGroups * I::kGroupSteps / 2 + half);
      }
    }
  }

  __device__ __forceinline__ static void unpack(uint32_t (&a)[I::kRows][I::kGroupSteps][4],
                                                const Fragments& f) {
#pragma unroll
    for (int row = 0; row < I::kRows; ++row) {
#pragma unroll
      for (int half = 0; half < I::kGroupSteps / 2; ++half) {
        const uint4 words = f.words[row][half];
        unpack_step(a[row][half * 2], words.x, words.y, f.scale[row]);
        unpack_step(a[row][half * 2 + 1], words.z, words.w, f.scale[row]);
      }
    }
  }

  __device__ __forceinline__ void release(int stage) const {
    if (stage >= 0) release_stage<I>(shared_, stage);
  }

  __device__ __forceinline__ void finish(const Work& work, const Classes& classes) {
    const bool two = p_.int4_blocks > 0 && p_.int4_blocks < p_.blocks;
    if (two && !classes.int4) sums_.park_zeros();
    if constexpr (I::kSchedule == Schedule::kStream) {
      collect<I>(p_, sums_, work, two, warpgroup_);
    }
    async_copies_wait();
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
  const int warpgroup_;
  const TileLane lane_;
  Ring ring_;
  int turn_ = 0;  // slice that has the next stage
  Sums<I> sums_;
};

}  // namespace comet::sm90
