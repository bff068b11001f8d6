// SPDX-License-Identifier: Apache-2.0
// Puts together the sums of a tile that several thread blocks computed parts of.
//
// Each writes its part to its own place and counts itself; the last one adds the others' parts to
// its own. Nobody waits, and integer sums do not depend on who was last. A thread block hands on at
// most two parts: that of the first tile of its run (place 0) and that of the last (place 1).
#pragma once

#include "comet/sm80/block.cuh"

namespace comet::sm80 {

// One thread block's part of a tile: blocks begin..end of K.
struct Part {
  int place, begin, end;
};

template <class I>
class Combiner {
 public:
  __device__ __forceinline__ explicit Combiner(const GemmParams& p) : p_(p) {}

  // Hands on this block's part of `tile`; true for the last one, whose sums then are complete.
  __device__ __forceinline__ bool combine(int tile, Sums<I>& sums4, Sums<I>& sums8) {
    const int first = owner(p_, tile, 0), last = owner(p_, tile, p_.blocks - 1);
    const Part own = part(tile, blockIdx.x);
    if (own.begin < p_.int4_blocks) store(chunks(blockIdx.x, own.place, 0), sums4);
    if (own.end > p_.int4_blocks) store(chunks(blockIdx.x, own.place, 1), sums8);
    if (!arrived_last(tile, last - first + 1)) return false;
    for (int rank = first; rank <= last; ++rank) {
      if (rank == static_cast<int>(blockIdx.x)) continue;
      const Part other = part(tile, rank);
      if (other.begin < p_.int4_blocks) add(chunks(rank, other.place, 0), sums4);
      if (other.end > p_.int4_blocks) add(chunks(rank, other.place, 1), sums8);
    }
    return true;
  }

 private:
  __device__ __forceinline__ Part part(int tile, int rank) const {
    const int origin = tile * p_.blocks;
    const int begin = run_begin(p_, rank), end = run_begin(p_, rank + 1);
    return {begin >= origin ? 0 : 1, max(begin - origin, 0), min(end - origin, p_.blocks)};
  }

  __device__ __forceinline__ int4* chunks(int rank, int place, int precision) const {
    const size_t index = (static_cast<size_t>(rank) * 2 + place) * 2 + precision;
    return p_.partials + index * I::kClassChunks * kThreads + reread_thread();
  }

  __device__ __forceinline__ bool arrived_last(int tile, int parts) {
    __shared__ int arrived;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      arrived = atomicAdd(p_.counters + tile, 1);
      if (arrived == parts - 1) p_.counters[tile] = 0;  // for the next launch
    }
    __syncthreads();
    __threadfence();
    return arrived == parts - 1;
  }

  static __device__ __forceinline__ void store(int4* to, const Sums<I>& sums) {
#pragma unroll
    for (int m = 0; m < I::kTokenFragments; ++m) {
#pragma unroll
      for (int n = 0; n < I::kChannelFragments; ++n) {
        const int (&s)[4] = sums[m][n];
        __stcg(to + (m * I::kChannelFragments + n) * kThreads, make_int4(s[0], s[1], s[2], s[3]));
      }
    }
  }

  static __device__ __forceinline__ void add(const int4* from, Sums<I>& sums) {
#pragma unroll
    for (int m = 0; m < I::kTokenFragments; ++m) {
#pragma unroll
      for (int n = 0; n < I::kChannelFragments; ++n) {
        const int4 v = __ldcg(from + (m * I::kChannelFragments + n) * kThreads);
        sums[m][n][0] += v.x;
        sums[m][n][1] += v.y;
        sums[m][n][2] += v.z;
        sums[m][n][3] += v.w;
      }
    }
  }

  const GemmParams& p_;
};

}  // namespace comet::sm80
