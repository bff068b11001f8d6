// SPDX-License-Identifier: Apache-2.0
// C interface of the sm_80 W4Ax GEMM; comet/kernels/w4ax_sm80_call.py mirrors the structs.
#pragma once

#include <stdint.h>

#include "comet/status.h"

struct CometW4axSm80Args {
  uint32_t size;  // sizeof(CometW4axSm80Args)
  int32_t dtype;  // comet::Dtype of out
  int32_t tokens;
  int32_t channels;  // a multiple of 8
  int32_t int4_blocks;
  int32_t int8_blocks;
  int32_t instance;            // index below comet_w4ax_sm80_instances()
  int32_t grid;                // thread blocks; 1, or at most half the weighted blocks of K
  int32_t interleaved;         // order of the weight codes; must be the build's
  const void* activations;     // sm_80 operand, see comet/layout.cuh
  const uint8_t* multiples;    // [tokens, int4_blocks]
  const float* scales;         // [2, tokens]
  const void* weights;         // tiles, see comet/sm80/weight_tile.cuh
  const float* channel_scale;  // [channels]
  const float* bias;           // [channels] or null
  void* out;                   // [tokens, channels]
  void* partials;              // grid * partial_bytes; may be null where grid divides the tiles
  int32_t* counters;           // one a tile, zero; left zero; null where partials is
};

// What a caller must know of a kernel instance to plan with it.
struct CometW4axSm80Instance {
  const char* name;
  int32_t tokens, channels;  // of the output tile
  int32_t residency;         // thread blocks an SM
  int32_t stages;
  int32_t interleaved;    // order of the weight codes that the build reads
  int32_t partial_bytes;  // workspace of one thread block
};

COMET_API int comet_w4ax_sm80_instances();
COMET_API int comet_w4ax_sm80_instance(int index, CometW4axSm80Instance* instance);
COMET_API int comet_w4ax_sm80(const CometW4axSm80Args* args, cudaStream_t stream);
