// SPDX-License-Identifier: Apache-2.0
// The sm_80 W4Ax GEMM: persistent thread blocks, each with one run of weighted stream-K.
#pragma once

#include "comet/sm80/combine.cuh"
#include "comet/sm80/epilogue.cuh"

namespace comet::sm80 {

template <class I>
__device__ __forceinline__ void clear(Sums<I>& sums) {
#pragma unroll
  for (int m = 0; m < I::kTokenFragments; ++m) {
#pragma unroll
    for (int n = 0; n < I::kChannelFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
  }
}

// The blocks of K of one run come through the stages of the pipeline, in order; block number
// `position`, counted over all tiles, through stage `position` modulo their number.
template <class I>
class Pipeline {
 public:
  __device__ __forceinline__ Pipeline(const GemmParams& p, uint32_t shared, uint32_t end, int begin)
      : loader_(p, begin), shared_(shared), end_(end) {
#pragma unroll 1
    for (int i = 0; i < I::kAhead; ++i) fill(begin + i);
  }

  // End of the run; lies in shared memory, where it does not occupy a register.
  __device__ __forceinline__ int end() const { return load_shared(end_); }

  // Waits for block `position`; returns the shared address of its stage.
  __device__ __forceinline__ uint32_t wait(int position) {
    if constexpr (I::kAhead > 0) {
      wait_copies<I::kAhead - 1>();
      __syncthreads();
      fill(position + I::kAhead);
    } else {
      __syncthreads();
      fill(position);
      loader_.store_multiple(stage(position));
      wait_copies<0>();
      __syncthreads();
    }
    return stage(position);
  }

 private:
  __device__ __forceinline__ uint32_t stage(int position) const {
    return shared_ + static_cast<unsigned>(position) % I::kStages * I::kStageBytes;
  }

  __device__ __forceinline__ void fill(int position) {
    loader_.store_multiple(stage(position + I::kStages - 1));
    if (position < end()) loader_.fill(stage(position));
    commit_copies();
  }

  Loader<I> loader_;
  uint32_t shared_, end_;
};

template <class I>
__global__ void __launch_bounds__(kThreads, I::kResidency) w4ax_kernel(const GemmParams p) {
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ int end;
  int position = run_begin(p, blockIdx.x);
  if (threadIdx.x == 0) end = run_begin(p, blockIdx.x + 1);
  __syncthreads();
  Pipeline<I> pipeline(p, shared_address(stages), shared_address(&end), position);
#pragma unroll 1
  while (position < pipeline.end()) {
    const int origin = position / p.blocks * p.blocks;
    const bool from_start = position == origin;
    Sums<I> sums4, sums8;
    clear<I>(sums4);
    const int end4 = min(pipeline.end(), origin + p.int4_blocks);
#pragma unroll 1
    for (; position < end4; ++position) Block<I>(pipeline.wait(position)).add_int4(sums4);
    clear<I>(sums8);
    const int end8 = min(pipeline.end(), origin + p.blocks);
#pragma unroll 1
    for (; position < end8; ++position) Block<I>(pipeline.wait(position)).add_int8(sums8);
    // Computed anew: nothing but the position occupies registers during the main loops.
    const int tile = (position - 1) / p.blocks;
    const bool whole = from_start && position == (tile + 1) * p.blocks;
    if (whole || Combiner<I>(p).combine(tile, sums4, sums8)) {
      Epilogue<I>(p).write(TilePlace::of(p, tile), sums4, sums8);
    }
  }
  wait_copies<0>();
}

}  // namespace comet::sm80
