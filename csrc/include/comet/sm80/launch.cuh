// SPDX-License-Identifier: Apache-2.0
// From the C arguments to a launch of one kernel instance.
#pragma once

#include "comet/scalar.cuh"
#include "comet/sm80/kernel.cuh"
#include "comet/w4ax_sm80.h"

namespace comet::sm80 {

template <class I>
CometW4axSm80Instance describe(const char* name) {
  return {name,       I::kTokens,      kTileChannels,     I::kResidency,
          I::kStages, I::kInterleaved, 4 * I::kClassBytes};
}

inline GemmParams params_of(const CometW4axSm80Args& a, int tile_tokens) {
  GemmParams p = {};
  p.activations = static_cast<const uint8_t*>(a.activations);
  p.multiples = a.multiples;
  p.scales = a.scales;
  p.weights = static_cast<const uint8_t*>(a.weights);
  p.channel_scale = a.channel_scale;
  p.bias = a.bias;
  p.out = a.out;
  p.partials = static_cast<int4*>(a.partials);
  p.counters = a.counters;
  p.tokens = a.tokens;
  p.channels = a.channels;
  p.int4_blocks = a.int4_blocks;
  p.blocks = a.int4_blocks + a.int8_blocks;
  p.row_bytes = row_bytes_sm80(a.int4_blocks, a.int8_blocks);
  p.token_tiles = (a.tokens + tile_tokens - 1) / tile_tokens;
  p.row_tiles = (a.channels + kTileChannels - 1) / kTileChannels;
  p.fp16 = a.dtype == kFp16;
  return p;
}

template <class I>
int launch_w4ax(const CometW4axSm80Args& a, cudaStream_t stream) {
  if (a.interleaved != I::kInterleaved) return kCometBadOption;
  GemmParams p = params_of(a, I::kTokens);
  const int64_t tiles = static_cast<int64_t>(p.token_tiles) * p.row_tiles;
  const int64_t total = tiles * tile_weight(p.int4_blocks, p.blocks);
  if (total > INT32_MAX) return kCometBadShape;
  p.total_weight = static_cast<int>(total);
  p.runs = a.grid;
  // Runs of at least two units of weight are never empty (schedule.cuh).
  if (a.grid < 1 || (a.grid > 1 && total / 2 < a.grid)) return kCometBadOption;
  if (tiles % a.grid != 0 && (a.partials == nullptr || a.counters == nullptr)) {
    return kCometBadPointer;
  }
  auto* kernel = w4ax_kernel<I>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, I::kSharedBytes);
  if (error != cudaSuccess) return cuda_status(error);
  kernel<<<a.grid, kThreads, I::kSharedBytes, stream>>>(p);
  return launch_status();
}

// The instances that are built. Tokens, warp rows, INT8 fragments, residency.
constexpr bool kDefaultWeights = COMET_W4AX_SM80_INTERLEAVED && COMET_W4AX_SM80_FAST_CONVERSION;
using T16 = Instance<16, 1, 2, 3>;
using T32 = Instance<32, 1, 2, 2>;
using T64 = Instance<64, 4, 2, 2>;
using T128 = Instance<128, 4, kDefaultWeights ? 4 : 2, 1>;  // the variants' conversion takes more

}  // namespace comet::sm80

#define COMET_W4AX_SM80_EXTERN(name)                                                        \
  extern template int comet::sm80::launch_w4ax<comet::sm80::name>(const CometW4axSm80Args&, \
                                                                  cudaStream_t);
#define COMET_W4AX_SM80_INSTANTIATE(name) \
  template int comet::sm80::launch_w4ax<comet::sm80::name>(const CometW4axSm80Args&, cudaStream_t);
