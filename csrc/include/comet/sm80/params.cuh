// SPDX-License-Identifier: Apache-2.0
// What the host tells the sm_80 W4Ax kernel.
#pragma once

#include <stdint.h>

namespace comet::sm80 {

struct GemmParams {
  const uint8_t* activations;  // [tokens][row_bytes]: INT4 blocks as nibbles, then INT8 blocks
  const uint8_t* multiples;    // [tokens][int4_blocks]
  const float* scales;         // [2][tokens]: base of the INT4 part, scale of the INT8 part
  const uint8_t* weights;      // [row_tiles][blocks][kTileBytes] (weight_tile.cuh)
  const float* channel_scale;  // [channels]
  const float* bias;           // [channels] or null
  void* out;                   // [tokens][channels], fp16 or bf16
  int4* partials;              // sums of tiles that are cut along K
  int* counters;               // one a tile: thread blocks that have delivered their part
  int tokens, channels;
  int int4_blocks, blocks;  // blocks of 128 along K
  int row_bytes;
  int token_tiles, row_tiles;
  int runs;          // thread blocks
  int total_weight;  // of all blocks of K of all tiles, see schedule.cuh
  int fp16;
};

}  // namespace comet::sm80
