// SPDX-License-Identifier: Apache-2.0
// What the host tells a W4Ax kernel.
#pragma once

#include <stdint.h>

namespace comet::sm90 {

struct GemmParams {
  const uint8_t* activations;  // int8 [blocks][padded_tokens][128], swizzled (comet/layout.cuh)
  const float* scales;         // [2][tokens]: base of the INT4 part, scale of the INT8 part
  const int* sums;             // [2][tokens]: row sums of the two parts
  const uint8_t* weights;      // [channel_tiles][blocks][kTileBytes] (weight_tile.cuh)
  const float* channel_scale;  // [channels]
  const float* bias;           // [channels] or null
  void* out;                   // [tokens][channels], fp16 or bf16
  int4* partials;              // stream-K: sums of blocks that do not finish their tile
  int* flags;                  // stream-K: one a block and warpgroup, zero between launches
  int tokens, padded_tokens;
  int channels, channel_tiles;
  int int4_blocks, blocks;     // blocks of 128 along K
  int token_tiles, row_tiles;  // output tiles
  int raster;                  // token tiles that are swept together
  int prefetch;                // stages of weights fetched before the wait
  int early_trigger;           // see kernel.cuh
  int stagger;                 // stages between the starts of two warpgroups
  int split;                   // blocks of a cluster that share a tile's K
  int last_int4, first_int8;   // ranks below hold INT4 sums; ranks from here on INT8 sums
  int shared_tiles, share, share_rest, share_unit;  // stream-K, see schedule.cuh
  int fp16;
};

}  // namespace comet::sm90
