// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of a W4Ax kernel and the shared memory it takes.
#pragma once

#include "comet/sm90/schedule.cuh"
#include "comet/sm90/weight_tile.cuh"

namespace comet::sm90 {

constexpr int kSharedPerSm = 228 * 1024;
constexpr int kReservedPerBlock = 1024;

// A thread block computes kTokens tokens of kWarpgroups x kRows x 64 output channels.
//
// kStageBlocks: blocks of 128 of K a pipeline stage holds. kGroupSteps: k32 steps unpacked and
// multiplied at once. kParkedRegisters: INT4 sums that stay in registers while the INT8 part runs,
// the others wait in shared memory. kResidency: thread blocks an SM. kBoost: consumers take over
// registers of the producer. kMostStages: the pipeline is as deep as shared memory allows, up to
// this.
template <int kTokens_, int kWarpgroups_, int kRows_, int kStageBlocks_, int kGroupSteps_,
          int kParkedRegisters_, int kResidency_, bool kBoost_, Schedule kSchedule_,
          int kMostStages = 8>
struct Instance {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kRows = kRows_;
  static constexpr int kStageBlocks = kStageBlocks_;
  static constexpr int kGroupSteps = kGroupSteps_;
  static constexpr int kParkedRegisters = kParkedRegisters_;
  static constexpr int kResidency = kResidency_;
  static constexpr bool kBoost = kBoost_;
  static constexpr Schedule kSchedule = kSchedule_;

  static constexpr int kTileRows = kWarpgroups * kRows;  // 64-channel rows of the output tile
  static constexpr int kSums = kTokens / 2;              // accumulators of a thread and row
  static constexpr int kChunks = kRows * kSums / 4;      // the same in 16-byte pieces
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
  static constexpr int kPlaceBytes = kWarpgroups * 16;
  static constexpr int kTokenTermBytes = kWarpgroups * kTokens * 16;
  static constexpr int kChannelTermBytes = kTileRows * kTileChannels * 8;
  static constexpr int kParkedBytes = kConsumers * kSharedChunks * 16;
  static constexpr int kFixedBytes =
      kPlaceBytes + kTokenTermBytes + kChannelTermBytes + kParkedBytes;
  static constexpr int kStageBytes = kStageOperandBytes + kStageWeightBytes + 16;
  static constexpr int kBudget = (kSharedPerSm / kResidency - kReservedPerBlock) / 16 * 16;
  static constexpr int kFit = (kBudget - kFixedBytes) / kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;

  static constexpr int kOperands = 0;
  static constexpr int kWeights = kStages * kStageOperandBytes;
  static constexpr int kParked = kWeights + kStages * kStageWeightBytes;
  static constexpr int kPlace = kParked + kParkedBytes;
  static constexpr int kTokenTerms = kPlace + kPlaceBytes;
  static constexpr int kChannelTerms = kTokenTerms + kTokenTermBytes;
  static constexpr int kFull = kChannelTerms + kChannelTermBytes;
  static constexpr int kEmpty = kFull + kStages * 8;
  static constexpr int kSharedBytes = kEmpty + kStages * 8;
  static constexpr int kClassBytes = kChunks * kConsumers * 16;

  static_assert(!kBoost || kWarpgroups == 2 || kWarpgroups == 3);
  static_assert(kStageBlocks == 1 || kStageBlocks == 2);
  static_assert(kStages >= 3 && kSharedBytes <= kBudget);
  static_assert(kSchedule == Schedule::kStream || 2 * kClassBytes <= kParked);
};

// Where the ring of stages stands; producer and consumers walk it alike.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;

  template <int kStages>
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace comet::sm90
