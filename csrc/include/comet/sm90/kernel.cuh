// SPDX-License-Identifier: Apache-2.0
// The W4Ax kernel of sm_90a: one producer warp feeds warpgroups that unpack, multiply and finish.
#pragma once

#include "comet/sm90/consumer.cuh"
#include "comet/sm90/producer.cuh"

namespace comet::sm90 {

template <class I>
__global__ void __launch_bounds__(I::kThreads, I::kResidency)
    w4ax_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) init_ring<I>(shared);
  __syncthreads();
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  if (warp >= I::kConsumers / 32) {
    if constexpr (I::kBoost) lower_registers<I::kProducerRegisters>();
    if (warp == I::kConsumers / 32 && threadIdx.x % 32 == 0) {
      // The next kernel may start (if it was launched so) once every block has said so. Early, its
      // blocks fill free places, but unevenly; late, they come when this kernel's loads run dry.
      if (p.early_trigger) launch_dependents();
      Producer<I>(p, shared).run();
      launch_dependents();
    }
    if (I::kSchedule == Schedule::kCluster && p.split > 1) {
      __syncwarp();
      for (int i = 0; i < 2; ++i) {  // see share_in_cluster
        cluster_arrive();
        cluster_wait();
      }
    }
  } else {
    if constexpr (I::kBoost) raise_registers<I::kConsumerRegisters>();
    Consumer<I>(p, shared).run();
  }
}

}  // namespace comet::sm90
