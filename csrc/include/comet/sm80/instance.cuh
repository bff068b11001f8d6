// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of an sm_80 W4Ax kernel, and the shared memory it takes.
#pragma once

#include "comet/sm80/weight_tile.cuh"

// Build variants that measure what a part of the design is worth (paper, figure 13):
// without the software pipeline (1 stage), without the interleaved layout, with naive conversion.
#ifndef COMET_W4AX_SM80_STAGES
#define COMET_W4AX_SM80_STAGES 4
#endif
#ifndef COMET_W4AX_SM80_INTERLEAVED
#define COMET_W4AX_SM80_INTERLEAVED 1
#endif
#ifndef COMET_W4AX_SM80_FAST_CONVERSION
#define COMET_W4AX_SM80_FAST_CONVERSION 1
#endif

namespace comet::sm80 {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kMmaTokens = 16;

// A thread block computes kTokens tokens of 128 output channels; its eight warps stand in kWarpRows
// rows of tokens. kInt8Fragments: 8-channel weight fragments of an INT8 block that are converted at
// a time, as many as registers allow. kResidency: thread blocks an SM.
template <int kTokens_, int kWarpRows_, int kInt8Fragments_, int kResidency_,
          int kStages_ = COMET_W4AX_SM80_STAGES,
          bool kInterleaved_ = COMET_W4AX_SM80_INTERLEAVED != 0,
          bool kFastConversion_ = COMET_W4AX_SM80_FAST_CONVERSION != 0>
struct Instance {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpRows = kWarpRows_;
  static constexpr int kInt8Fragments = kInt8Fragments_;
  static constexpr int kResidency = kResidency_;
  static constexpr int kStages = kStages_;
  static constexpr bool kInterleaved = kInterleaved_;
  static constexpr bool kFastConversion = kFastConversion_;

  static constexpr int kWarpColumns = kWarps / kWarpRows;
  static constexpr int kTokenFragments = kTokens / kMmaTokens / kWarpRows;  // of a warp
  static constexpr int kChannelFragments = kTileChannels / kGroupChannels / kWarpColumns;
  static constexpr int kAhead = kStages - 1;  // blocks whose copies are under way

  // A stage of the pipeline; the swizzle of the operand needs a multiple of 128.
  static constexpr int kOperand = 0;
  static constexpr int kWeights = kTokens * kBlock;
  static constexpr int kMultiples = kWeights + kTileBytes;  // int32, in the order that lanes want
  static constexpr int kStageBytes = (kMultiples + kTokens * 4 + 127) / 128 * 128;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // Sums of one precision class of a tile.
  static constexpr int kClassChunks = kTokenFragments * kChannelFragments;
  static constexpr int kClassBytes = kClassChunks * kThreads * 16;

  static_assert(kTokenFragments * kMmaTokens * kWarpRows == kTokens);
  static_assert(kChannelFragments % kInt8Fragments == 0);
  // Multiples reach shared memory one iteration after they were asked for (loader.cuh).
  static_assert(kStages == 1 || kStages >= 3);
};

// Sums of a warp's part of an output tile: I4 and I8 of the contract.
template <class I>
using Sums = int[I::kTokenFragments][I::kChannelFragments][4];

}  // namespace comet::sm80
