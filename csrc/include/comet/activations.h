// SPDX-License-Identifier: Apache-2.0
// C interface of activation quantization; comet/kernels/activations.py mirrors the struct.
#pragma once

#include <stdint.h>

#include "comet/status.h"

enum CometScaleMode : int { kTokenBlockMultiple = 0, kTokenBlock = 1, kToken = 2 };

// kRows: int8 [M, Kp], codes as the reference holds them. kSm90, kSm80: see comet/layout.cuh.
enum CometOperandLayout : int { kRows = 0, kSm90 = 1, kSm80 = 2 };

struct CometQuantizeArgs {
  uint32_t size;  // sizeof(CometQuantizeArgs)
  int32_t dtype;  // comet::Dtype of x, second, weight and sum_out
  int32_t tokens;
  int32_t channels;
  int32_t int4_blocks;
  int32_t int8_blocks;
  int32_t mode;
  int32_t layout;
  int32_t zero_point;
  int32_t hadamard;
  int32_t dependent_launch;  // launch before the previous kernel of the stream has ended
  float epsilon;             // RMSNorm
  int64_t x_stride;          // elements between rows
  int64_t second_stride;
  const void* x;               // [M, K]; the gate of SiLU
  const void* second;          // [M, K]; residual of RMSNorm or null, up of SiLU
  const void* weight;          // [K]; RMSNorm
  void* sum_out;               // [M, K] contiguous; x + residual, or null
  const int32_t* permutation;  // [Kp], -1 is a zero; null is the identity; read before the wait
  void* operand;
  float* scales;       // [2, M]: base, INT8 scale; [B, M] in mode token_block
  int32_t* sums;       // [2, M]: row sums of the INT4 and INT8 operand; [B, M] in token_block
  uint8_t* multiples;  // [M, B4]; may be null for kSm90, which holds r * code
};

COMET_API int comet_quantize(const CometQuantizeArgs* args, cudaStream_t stream);
COMET_API int comet_rmsnorm_quantize(const CometQuantizeArgs* args, cudaStream_t stream);
COMET_API int comet_silu_quantize(const CometQuantizeArgs* args, cudaStream_t stream);
