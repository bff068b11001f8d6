// SPDX-License-Identifier: Apache-2.0
// The kernel instances that are built. comet/kernels/plan_sm90.py chooses among them.
#pragma once

#include "comet/sm90/launch.cuh"

namespace comet::sm90 {

constexpr Schedule kCluster = Schedule::kCluster, kStream = Schedule::kStream;

// Tokens, warpgroups, rows, stage blocks, group steps, parked registers, residency, boost,
// schedule, most stages, slices.
using T8x1 = Instance<8, 1, 1, 2, 4, 4, 4, false, kCluster>;
using T8x2 = Instance<8, 2, 1, 2, 4, 4, 2, false, kCluster>;
using T16x1 = Instance<16, 1, 1, 2, 4, 4, 4, false, kCluster>;
using T16x2 = Instance<16, 2, 1, 2, 4, 4, 2, false, kCluster>;
using T16s2 = Instance<16, 2, 1, 2, 2, 8, 2, false, kStream>;
using T16k4 = Instance<16, 4, 1, 2, 2, 8, 1, false, kCluster, 12, 4>;
using T32x1 = Instance<32, 1, 1, 2, 4, 16, 3, false, kCluster>;
using T32x2 = Instance<32, 2, 1, 2, 2, 16, 2, false, kCluster>;
using T32s2 = Instance<32, 2, 1, 2, 2, 0, 2, false, kStream>;
using T32k4 = Instance<32, 4, 1, 2, 2, 16, 1, false, kCluster, 12, 4>;
using T32k2x2 = Instance<32, 4, 1, 2, 2, 16, 1, false, kCluster, 8, 2>;
using T64x1 = Instance<64, 1, 1, 1, 4, 16, 3, false, kCluster>;
using T64s2 = Instance<64, 2, 1, 1, 2, 0, 2, false, kStream>;
using T64s3 = Instance<64, 3, 1, 1, 4, 16, 1, true, kStream>;
using T64k2 = Instance<64, 2, 1, 1, 2, 0, 2, false, kCluster, 8, 2>;
using T64k4 = Instance<64, 4, 1, 1, 2, 0, 1, false, kCluster, 12, 4>;
using T64k2x2 = Instance<64, 4, 1, 1, 2, 0, 1, false, kCluster, 8, 2>;
using T128k2 = Instance<128, 2, 1, 1, 4, 32, 1, false, kCluster, 10, 2>;
using T128x2 = Instance<128, 2, 1, 1, 4, 32, 1, false, kCluster>;
using T128s2 = Instance<128, 2, 1, 1, 4, 32, 1, true, kStream>;
using T128s3 = Instance<128, 3, 1, 1, 2, 0, 1, true, kStream>;
using T128d2 = Instance<128, 2, 2, 1, 2, 16, 1, true, kStream>;
using T256s2 = Instance<256, 2, 1, 1, 2, 32, 1, true, kStream>;

}  // namespace comet::sm90

// Every instance, in the order of its index.
// clang-format off
#define COMET_W4AX_INSTANCES(X) \
  X(T8x1) X(T8x2) \
  X(T16x1) X(T16x2) X(T16s2) X(T16k4) \
  X(T32x1) X(T32x2) X(T32s2) X(T32k4) X(T32k2x2) \
  X(T64x1) X(T64s2) X(T64s3) X(T64k2) X(T64k4) X(T64k2x2) \
  X(T128k2) X(T128x2) X(T128s2) X(T128s3) X(T128d2) \
  X(T256s2)
// clang-format on

#define COMET_W4AX_EXTERN(name)                                                              \
  extern template int comet::sm90::launch_w4ax<comet::sm90::name>(const CometW4axArgs& args, \
                                                                  cudaStream_t stream);
#define COMET_W4AX_INSTANTIATE(name)                                                  \
  template int comet::sm90::launch_w4ax<comet::sm90::name>(const CometW4axArgs& args, \
                                                           cudaStream_t stream);
