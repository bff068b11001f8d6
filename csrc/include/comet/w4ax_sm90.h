// SPDX-License-Identifier: Apache-2.0
// C interface of the sm_90a W4Ax GEMM; comet/kernels/w4ax_call.py mirrors the structs.
#pragma once

#include <stdint.h>

#include "comet/status.h"

struct CometW4axArgs {
  uint32_t size;  // sizeof(CometW4axArgs)
  int32_t dtype;  // comet::Dtype of out
  int32_t tokens;
  int32_t channels;  // a multiple of 8
  int32_t int4_blocks;
  int32_t int8_blocks;
  int32_t instance;            // index below comet_w4ax_instances()
  int32_t split;               // cluster schedule: thread blocks that share a tile's K, 1 to 8
  int32_t grid;                // stream schedule: thread blocks
  int32_t shared_tiles;        // stream schedule: tiles cut along K, the others are whole
  int32_t prefetch;            // pipeline stages of weights fetched before the kernel in front ends
  int32_t dependent_launch;    // launch before the kernel in front has ended
  int32_t early_trigger;       // let the next kernel start at once, not when all loads are issued
  int32_t stagger;             // stream schedule: stages between the starts of two warpgroups
  const void* activations;     // sm_90a operand, see comet/layout.cuh
  const float* scales;         // [2, tokens]
  const int32_t* sums;         // [2, tokens]
  const void* weights;         // tiles, see comet/sm90/weight_tile.cuh
  const float* channel_scale;  // [channels]
  const float* bias;           // [channels] or null
  void* out;                   // [tokens, channels]
  void* partials;              // stream schedule: grid * partial_bytes
  int32_t* flags;              // stream schedule: grid * warpgroups, zero; left zero
};

// What a caller must know of a kernel instance to plan with it.
struct CometW4axInstance {
  const char* name;
  int32_t tokens, channels;  // of the output tile
  int32_t stream;            // 1: stream schedule, 0: cluster schedule
  int32_t residency;         // thread blocks an SM
  int32_t stages;
  int32_t warpgroups;
  int32_t partial_bytes;  // workspace of one thread block
};

struct CometTileWeightsArgs {
  uint32_t size;  // sizeof(CometTileWeightsArgs)
  int32_t channels;
  int32_t blocks;
  const uint8_t* codes;        // [channels, blocks * 64], even channel low
  const uint8_t* group_scale;  // [channels, blocks]
  const uint8_t* group_zero;   // [channels, blocks]
  void* tiles;                 // [channels / 64 rounded up][blocks][4224]
};

// Identifier of the graph capture that the stream is in, 0 when it is in none.
COMET_API int comet_capture_id(cudaStream_t stream, uint64_t* id);
COMET_API int comet_w4ax_instances();
COMET_API int comet_w4ax_instance(int index, CometW4axInstance* instance);
COMET_API int comet_w4ax_sm90(const CometW4axArgs* args, cudaStream_t stream);
// One scale per token and block, one per channel and group: `scales` and `sums` are [blocks,
// tokens], `channel_scale` is [blocks, channels]; the plan fields are not read.
COMET_API int comet_w4ax_block_scaled_sm90(const CometW4axArgs* args, cudaStream_t stream);
COMET_API int comet_tile_weights_sm90(const CometTileWeightsArgs* args, cudaStream_t stream);
