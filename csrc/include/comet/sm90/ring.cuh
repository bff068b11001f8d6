// SPDX-License-Identifier: Apache-2.0
// The ring of stages between the producer and the consumers, and the barriers that guard it.
//
// A stage is full when its copies have arrived (the copies themselves complete the barrier) and
// empty when every consumer warp of its slice has said that its reads are over.
#pragma once

#include "comet/sm90/instance.cuh"
#include "comet/sm90/ptx.cuh"

// For compute-sanitizer: 32. One lane arrives for its warp: __syncwarp puts the reads of all lanes
// before the arrival, and the arrival before whatever waited for it. racecheck knows of an arrival
// only that it comes after what its own thread did, and reports the reads of the other 31 lanes
// against the copy that fills the stage again. Where every lane arrives it sees the same order.
#ifndef COMET_W4AX_SM90_ARRIVING_LANES
#define COMET_W4AX_SM90_ARRIVING_LANES 1
#endif

namespace comet::sm90 {

constexpr int kArrivingLanes = COMET_W4AX_SM90_ARRIVING_LANES;
static_assert(kArrivingLanes == 1 || kArrivingLanes == 32);

// Where producer and consumers stand; both walk the ring alike.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;

  // The number of stages is a multiple of kStep.
  template <int kStages, int kStep = 1>
  __device__ __forceinline__ void advance() {
    stage += kStep;
    if (stage >= kStages) {
      stage -= kStages;
      phase ^= 1;
    }
  }
};

// One thread fills a stage, every consumer warp of a slice empties it.
template <class I>
__device__ __forceinline__ void init_ring(uint32_t shared) {
  for (int stage = 0; stage < I::kStages; ++stage) {
    barrier_init(shared + I::kFull + stage * 8, 1);
    barrier_init(shared + I::kEmpty + stage * 8, I::kRowThreads / 32 * kArrivingLanes);
  }
  fence_barrier_init();
}

// The calling warp reads this stage no more.
template <class I>
__device__ __forceinline__ void release_stage(uint32_t shared, int stage) {
  __syncwarp();
  if (kArrivingLanes == 32 || threadIdx.x % 32 == 0) {
    barrier_arrive(shared + I::kEmpty + stage * 8);
  }
}

}  // namespace comet::sm90
