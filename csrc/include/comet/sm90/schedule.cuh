// SPDX-License-Identifier: Apache-2.0
// Which output tiles, and which part of K, a thread block works on.
#pragma once

#include "comet/sm90/params.cuh"

namespace comet::sm90 {

// kCluster: one tile a cluster, K cut among its blocks (one or more).
// kStream: persistent blocks. The first shared_tiles tiles are cut into equal runs of K, one a
//   block (stream-K); the others are whole tiles, dealt out in turn.
enum class Schedule { kCluster, kStream };

struct Work {
  int tile;
  int begin, end;  // blocks of K
};

// First K block, counted over all shared tiles, of a thread block's run.
__device__ __forceinline__ int run_begin(const GemmParams& p, int thread_block) {
  return (thread_block * p.share + min(thread_block, p.share_rest)) * p.share_unit;
}

// First K block of a rank of a cluster; K is cut at multiples of kUnit blocks.
template <int kUnit>
__host__ __device__ __forceinline__ int slice_begin(unsigned blocks, unsigned split,
                                                    unsigned rank) {
  const unsigned units = (blocks + kUnit - 1) / kUnit, begin = units * rank / split * kUnit;
  return begin < blocks ? begin : blocks;
}

template <Schedule kSchedule>
class WorkList;

template <>
class WorkList<Schedule::kCluster> {
 public:
  __device__ __forceinline__ explicit WorkList(const GemmParams& p) : p_(p) {}

  // The work item of this number; false when there is none.
  template <int kUnit>
  __device__ __forceinline__ bool get(int index, Work& work) const {
    if (index > 0) return false;
    const unsigned split = p_.split;
    const unsigned tile = blockIdx.x / split, rank = blockIdx.x % split;
    work = {static_cast<int>(tile), slice_begin<kUnit>(p_.blocks, p_.split, rank),
            slice_begin<kUnit>(p_.blocks, p_.split, rank + 1)};
    return true;
  }

 private:
  const GemmParams& p_;
};

// Runs are walked from their end: a block first computes the front part of a tile, whose sums it
// hands on, and last the back part of an earlier tile, whose front part its neighbour computed
// first: nobody waits long. The back part holds the INT8 blocks, so what is handed on is mostly one
// class of sums.
template <>
class WorkList<Schedule::kStream> {
 public:
  __device__ __forceinline__ explicit WorkList(const GemmParams& p) : p_(p) {}

  // Computed from the number alone: anything more would occupy registers during the main loop.
  template <int kUnit>
  __device__ __forceinline__ bool get(int index, Work& work) const {
    if (p_.shared_tiles > 0) {
      const unsigned begin = run_begin(p_, blockIdx.x), end = run_begin(p_, blockIdx.x + 1);
      const unsigned blocks = p_.blocks, last = (end - 1) / blocks;
      const int parts = last - begin / blocks + 1;
      if (index < parts) {
        const unsigned tile = last - index, origin = tile * blocks;
        work = {static_cast<int>(tile), static_cast<int>(max(begin, origin) - origin),
                static_cast<int>(min(end, origin + blocks) - origin)};
        return true;
      }
      index -= parts;
    }
    work = {static_cast<int>(p_.shared_tiles + blockIdx.x + index * gridDim.x), 0, p_.blocks};
    return work.tile < p_.token_tiles * p_.row_tiles;
  }

 private:
  const GemmParams& p_;
};

struct TilePlace {
  int token_tile, row_tile;
};

// Token tiles run fastest, `raster` of them at a time: neighbours share weights, and the
// activations of one sweep stay in the L2 cache.
__device__ __forceinline__ TilePlace tile_place(const GemmParams& p, int tile) {
  if (p.token_tiles == 1) return {0, tile};
  const unsigned sweep = p.raster * p.row_tiles;
  const unsigned group = static_cast<unsigned>(tile) / sweep, inside = tile - group * sweep;
  const unsigned first = group * p.raster;
  const unsigned width = min(static_cast<unsigned>(p.raster), p.token_tiles - first);
  const unsigned row = inside / width;
  return {static_cast<int>(first + inside - row * width), static_cast<int>(row)};
}

}  // namespace comet::sm90
