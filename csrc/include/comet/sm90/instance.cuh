// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of a W4Ax kernel and the shared memory it takes.
#pragma once

#include "comet/sm90/schedule.cuh"
#include "comet/sm90/weight_tile.cuh"

// Build variant that measures what the software pipeline is worth (paper, figure 13): 1 leaves it
// out. By default the pipeline is as deep as shared memory allows.
#ifndef COMET_W4AX_SM90_STAGES
#define COMET_W4AX_SM90_STAGES 0
#endif

namespace comet::sm90 {

constexpr int kFixedStages = COMET_W4AX_SM90_STAGES;
constexpr int kSharedPerSm = 228 * 1024;
constexpr int kReservedPerBlock = 1024;

// A thread block computes kTokens tokens of kWarpgroups / kSlices x kRows x 64 output channels.
//
// kStageBlocks: blocks of 128 of K a pipeline stage holds. kGroupSteps: k32 steps unpacked and
// multiplied at once. kParkedRegisters: INT4 sums that stay in registers while the INT8 part runs,
// the others wait in shared memory. kResidency: thread blocks an SM. kBoost: consumers take over
// registers of the producer. kMostStages: the pipeline is as deep as shared memory allows, up to
// this. kSlices: warpgroups that take turns at the stages of the same channels, and add up their
// sums in shared memory: few tokens need several warpgroups an SM to hide the unpacking, and each
// further thread block that shares K costs a reduction through the cluster.
template <int kTokens_, int kWarpgroups_, int kRows_, int kStageBlocks_, int kGroupSteps_,
          int kParkedRegisters_, int kResidency_, bool kBoost_, Schedule kSchedule_,
          int kMostStages = 8, int kSlices_ = 1>
struct Instance {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kRows = kRows_;
  static constexpr int kStageBlocks = kStageBlocks_;
  static constexpr int kGroupSteps = kGroupSteps_;
  // Without the pipeline there is shared memory enough for all of them.
  static constexpr int kParkedRegisters = kFixedStages > 0 ? 0 : kParkedRegisters_;
  static constexpr int kResidency = kResidency_;
  static constexpr bool kBoost = kBoost_;
  static constexpr Schedule kSchedule = kSchedule_;

  static constexpr int kSlices = kSlices_;
  static constexpr int kRowGroups = kWarpgroups / kSlices;
  static constexpr int kRowThreads = kRowGroups * 128;  // consumers of one slice
  static constexpr int kTileRows = kRowGroups * kRows;  // 64-channel rows of the output tile
  static constexpr int kSums = kTokens / 2;             // accumulators of a thread and row
  static constexpr int kChunks = kRows * kSums / 4;     // the same in 16-byte pieces
  static constexpr int kConsumers = kWarpgroups * 128;
  static constexpr int kThreads = kConsumers + (kBoost ? 128 : 32);
  // Together what the kernel is launched with: at most 65,536 registers.
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 144;
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 80;

  static constexpr int kParkedChunks = kParkedRegisters / 4;
  static constexpr int kSharedChunks = kChunks - kParkedChunks;
  static constexpr int kOperandBytes = kTokens * kTileK;
  static constexpr int kStageOperandBytes = kStageBlocks * kOperandBytes;
  static constexpr int kStageWeightBytes = kTileRows * kStageBlocks * kTileBytes;

  // Dynamic shared memory, which starts at a multiple of 1024. Cluster sums lie over the stages.
  static constexpr int kPlaceBytes = kRowGroups * 16;
  static constexpr int kTokenTermBytes = kRowGroups * kTokens * 16;
  static constexpr int kChannelTermBytes = kTileRows * kTileChannels * 8;
  static constexpr int kParkedBytes = kConsumers * kSharedChunks * 16;
  static constexpr int kFixedBytes =
      kPlaceBytes + kTokenTermBytes + kChannelTermBytes + kParkedBytes;
  static constexpr int kStageBytes = kStageOperandBytes + kStageWeightBytes + 16;
  static constexpr int kBudget = (kSharedPerSm / kResidency - kReservedPerBlock) / 16 * 16;
  static constexpr int kFit = (kBudget - kFixedBytes) / kStageBytes;
  static constexpr int kDeep = kFit < kMostStages ? kFit : kMostStages;
  static constexpr int kOwnStages = kFixedStages > 0 ? kFixedStages : kDeep / kSlices;
  static constexpr int kStages = kOwnStages * kSlices;

  static constexpr int kOperands = 0;
  static constexpr int kWeights = kStages * kStageOperandBytes;
  static constexpr int kStagesEnd = kWeights + kStages * kStageWeightBytes;
  static constexpr int kClassBytes = kChunks * kRowThreads * 16;
  static constexpr int kSliceBytes = 2 * kClassBytes;
  static constexpr int kClusterEnd = kSchedule == Schedule::kCluster ? kSlices * kSliceBytes : 0;
  static constexpr int kParked = kStagesEnd > kClusterEnd ? kStagesEnd : kClusterEnd;
  static constexpr int kPlace = kParked + kParkedBytes;
  static constexpr int kTokenTerms = kPlace + kPlaceBytes;
  static constexpr int kChannelTerms = kTokenTerms + kTokenTermBytes;
  static constexpr int kFull = kChannelTerms + kChannelTermBytes;
  static constexpr int kEmpty = kFull + kStages * 8;
  static constexpr int kSharedBytes = kEmpty + kStages * 8;

  static_assert(!kBoost || kWarpgroups == 2 || kWarpgroups == 3);
  static_assert(kSlices == 1 || kSlices == 2 || kSlices == 4);
  static_assert(kWarpgroups % kSlices == 0);
  static_assert(kSlices == 1 || kSchedule == Schedule::kCluster);
  static_assert(kStageBlocks == 1 || kStageBlocks == 2);
  static_assert((kStages >= 3 || kFixedStages > 0) && kSharedBytes <= kBudget);
};

}  // namespace comet::sm90
