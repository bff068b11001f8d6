// SPDX-License-Identifier: Apache-2.0
// The ring of stages between the producer and the consumers, and the barriers that guard it.
//
// A stage is full when its copies have arrived (the copies themselves complete the barrier) and
// empty when every consumer thread of its slice has said that its reads are over. One lane could
// speak for its warp after __syncwarp, but compute-sanitizer does not follow that, and it is no
// faster.
#pragma once

#include "comet/sm90/instance.cuh"
#include "comet/sm90/ptx.cuh"

namespace comet::sm90 {

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

// One thread fills a stage, every consumer of a slice empties it.
template <class I>
__device__ __forceinline__ void init_ring(uint32_t shared) {
  for (int stage = 0; stage < I::kStages; ++stage) {
    barrier_init(shared + I::kFull + stage * 8, 1);
    barrier_init(shared + I::kEmpty + stage * 8, I::kRowThreads);
  }
  fence_barrier_init();
}

// The calling thread reads this stage no more.
template <class I>
__device__ __forceinline__ void release_stage(uint32_t shared, int stage) {
  barrier_arrive(shared + I::kEmpty + stage * 8);
}

}  // namespace comet::sm90
