// SPDX-License-Identifier: Apache-2.0
// Weighted stream-K: which blocks of K of which output tiles a thread block computes.
//
// All blocks of K of all tiles form one line, in which an INT8 block is twice as long as an INT4
// block (it takes the tensor cores twice as long). The line is cut into equal runs, one a thread
// block, and a cut inside an INT8 block moves to its end. comet/schedule/stream_k.py says the same
// in Python.
#pragma once

#include "comet/sm80/params.cuh"

namespace comet::sm80 {

constexpr int kInt8Weight = 2;

__host__ __device__ constexpr int tile_weight(int int4_blocks, int blocks) {
  return int4_blocks + kInt8Weight * (blocks - int4_blocks);
}

// Where block `block` of a tile starts on the tile's stretch of the line.
__host__ __device__ __forceinline__ int block_start(const GemmParams& p, int block) {
  return block + max(0, block - p.int4_blocks) * (kInt8Weight - 1);
}

// Point at which thread block `rank`'s run would start if blocks could be cut anywhere.
__host__ __device__ __forceinline__ int ideal_start(const GemmParams& p, int rank) {
  return static_cast<int>(static_cast<int64_t>(rank) * p.total_weight / p.runs);
}

// First block, counted over all tiles, of a thread block's run.
__host__ __device__ __forceinline__ int run_begin(const GemmParams& p, int rank) {
  const int start = ideal_start(p, rank), weight = tile_weight(p.int4_blocks, p.blocks);
  const int tile = start / weight, inside = start - tile * weight;
  const int extra = max(0, inside - p.int4_blocks);
  return tile * p.blocks + inside - extra + (extra + kInt8Weight - 1) / kInt8Weight;
}

// The thread block whose run holds block `block` of tile `tile`: the last one whose run starts at
// it or before. Runs are not empty.
__host__ __device__ __forceinline__ int owner(const GemmParams& p, int tile, int block) {
  const int64_t start =
      static_cast<int64_t>(tile) * tile_weight(p.int4_blocks, p.blocks) + block_start(p, block);
  return static_cast<int>(((start + 1) * p.runs - 1) / p.total_weight);
}

// An output tile. Token tiles run fastest: neighbours share weights.
struct TilePlace {
  int token_tile, row_tile;

  static __device__ __forceinline__ TilePlace of(const GemmParams& p, int tile) {
    const int row_tile = tile / p.token_tiles;
    return {tile - row_tile * p.token_tiles, row_tile};
  }

  __device__ __forceinline__ void advance(const GemmParams& p) {
    if (++token_tile < p.token_tiles) return;
    token_tile = 0;
    ++row_tile;
  }
};

}  // namespace comet::sm80
