// SPDX-License-Identifier: Apache-2.0
// From the C arguments to a launch of one kernel instance.
#pragma once

#include "comet/layout.cuh"
#include "comet/scalar.cuh"
#include "comet/sm90/kernel.cuh"
#include "comet/w4ax_sm90.h"

namespace comet::sm90 {

constexpr int kLargestCluster = 8;
constexpr int kRaster = 8;  // token tiles swept together: their activations fit the L2 cache

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

inline bool aligned(const void* pointer, uintptr_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline int check(const CometW4axArgs& a) {
  if (a.dtype != kFp16 && a.dtype != kBf16) return kCometBadDtype;
  if (a.tokens < 1 || a.channels < 8 || a.channels % 8 != 0) return kCometBadShape;
  if (a.int4_blocks < 0 || a.int8_blocks < 0) return kCometBadShape;
  // int32 sums cannot overflow: 1024 * 128 * 127 * 128 < 2^31.
  if (a.int4_blocks + a.int8_blocks < 1 || a.int4_blocks + a.int8_blocks > 1024) {
    return kCometBadShape;
  }
  for (const void* pointer : {a.activations, a.weights, static_cast<const void*>(a.out)}) {
    if (!aligned(pointer, 16)) return kCometBadPointer;
  }
  for (const void* pointer : {static_cast<const void*>(a.scales), static_cast<const void*>(a.sums),
                              static_cast<const void*>(a.channel_scale)}) {
    if (!aligned(pointer, 4)) return kCometBadPointer;
  }
  return kCometOk;
}

template <class I>
CometW4axInstance describe(const char* name) {
  return {name,
          I::kTokens,
          I::kTileRows * kTileChannels,
          I::kSchedule == Schedule::kStream,
          I::kResidency,
          I::kStages,
          I::kWarpgroups,
          I::kSliceBytes};
}

// Cuts the K blocks of the shared tiles into one run a thread block.
template <class I>
void share_tiles(GemmParams& p, int shared_tiles, int grid) {
  const int unit = p.blocks % I::kStageBlocks == 0 ? I::kStageBlocks : 1;
  const int total = shared_tiles * (p.blocks / unit);
  p.shared_tiles = shared_tiles;
  p.share_unit = unit;
  p.share = total / grid;
  p.share_rest = total % grid;
}

inline GemmParams params_of(const CometW4axArgs& a) {
  GemmParams p = {};
  p.activations = static_cast<const uint8_t*>(a.activations);
  p.scales = a.scales;
  p.sums = a.sums;
  p.weights = static_cast<const uint8_t*>(a.weights);
  p.channel_scale = a.channel_scale;
  p.bias = a.bias;
  p.out = a.out;
  p.partials = static_cast<int4*>(a.partials);
  p.flags = a.flags;
  p.tokens = a.tokens;
  p.padded_tokens = padded_tokens(a.tokens);
  p.channels = a.channels;
  p.channel_tiles = ceil_div(a.channels, kTileChannels);
  p.int4_blocks = a.int4_blocks;
  p.blocks = a.int4_blocks + a.int8_blocks;
  p.raster = kRaster;
  p.prefetch = a.dependent_launch ? a.prefetch : 0;
  p.early_trigger = a.early_trigger;
  p.stagger = a.stagger;
  p.split = 1;
  p.fp16 = a.dtype == kFp16;
  return p;
}

inline void add_dependent(cudaLaunchConfig_t& config) {
  cudaLaunchAttribute& dependent = config.attrs[config.numAttrs++];
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
}

inline int run_kernel(const cudaLaunchConfig_t& config, void (*kernel)(GemmParams),
                      const GemmParams& p) {
  const cudaError_t error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, config.dynamicSmemBytes);
  if (error != cudaSuccess) return cuda_status(error);
  return cuda_status(cudaLaunchKernelEx(&config, kernel, p));
}

template <class I>
int launch_w4ax(const CometW4axArgs& a, cudaStream_t stream) {
  GemmParams p = params_of(a);
  p.token_tiles = ceil_div(a.tokens, I::kTokens);
  p.row_tiles = ceil_div(p.channel_tiles, I::kTileRows);
  const int tiles = p.token_tiles * p.row_tiles;

  cudaLaunchConfig_t config = {};
  config.blockDim = I::kThreads;
  config.dynamicSmemBytes = I::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if constexpr (I::kSchedule == Schedule::kCluster) {
    if (a.split < 1 || a.split > kLargestCluster) return kCometBadOption;
    if (a.split > ceil_div(p.blocks, I::kStageBlocks)) return kCometBadOption;
    p.split = a.split;
    p.last_int4 = p.split;
    if (a.int4_blocks > 0 && a.int8_blocks > 0) {
      const auto begin = [&](int rank) {
        return slice_begin<I::kStageBlocks>(p.blocks, p.split, rank);
      };
      while (begin(p.last_int4 - 1) >= a.int4_blocks) --p.last_int4;
      while (begin(p.first_int8 + 1) <= a.int4_blocks) ++p.first_int8;
    }
    config.gridDim = tiles * a.split;
    if (a.split > 1) {
      cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(a.split), 1, 1};
    }
  } else {
    if (a.grid < 1 || a.shared_tiles < 0 || a.shared_tiles > tiles) return kCometBadOption;
    if (a.stagger < 0 || a.stagger > I::kStages) return kCometBadOption;
    if (a.shared_tiles > 0 && (a.partials == nullptr || a.flags == nullptr)) {
      return kCometBadPointer;
    }
    share_tiles<I>(p, a.shared_tiles, a.grid);
    // A block without a run would never hand on what the owner of its tile waits for.
    if (a.shared_tiles > 0 && p.share == 0) return kCometBadOption;
    config.gridDim = a.grid;
  }
  if (a.dependent_launch) add_dependent(config);
  return run_kernel(config, w4ax_kernel<I>, p);
}

}  // namespace comet::sm90
