// SPDX-License-Identifier: Apache-2.0
// The integer sums of a thread: one running set, and the parked INT4 set while the INT8 part runs.
#pragma once

#include "comet/sm90/instance.cuh"
#include "comet/sm90/ptx.cuh"
#include "comet/sm90/wgmma.cuh"

namespace comet::sm90 {

template <class I>
struct Sums {
  int running[I::kRows][I::kSums];
  int parked[I::kParkedRegisters > 0 ? I::kParkedRegisters : 1];
  uint32_t parked_shared;  // this thread's first chunk in shared memory

  __device__ __forceinline__ int& value(int index) {
    return running[index / I::kSums][index % I::kSums];
  }

  __device__ __forceinline__ int4 chunk(int c) {
    return {value(c * 4), value(c * 4 + 1), value(c * 4 + 2), value(c * 4 + 3)};
  }

  __device__ __forceinline__ int4 parked_chunk(int c) const {
    if (c < I::kParkedChunks) {
      return {parked[c * 4], parked[c * 4 + 1], parked[c * 4 + 2], parked[c * 4 + 3]};
    }
    const uint4 v = load_shared4(parked_shared + offset(c));
    return {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z),
            static_cast<int>(v.w)};
  }

  __device__ __forceinline__ void park_chunk(int c, const int4& v) {
    if (c < I::kParkedChunks) {
      parked[c * 4] = v.x;
      parked[c * 4 + 1] = v.y;
      parked[c * 4 + 2] = v.z;
      parked[c * 4 + 3] = v.w;
    } else {
      store_shared4(parked_shared + offset(c), v.x, v.y, v.z, v.w);
    }
  }

  __device__ __forceinline__ void park() {
#pragma unroll
    for (int c = 0; c < I::kChunks; ++c) park_chunk(c, chunk(c));
  }

  __device__ __forceinline__ void park_zeros() {
#pragma unroll
    for (int c = 0; c < I::kChunks; ++c) park_chunk(c, {0, 0, 0, 0});
  }

  __device__ __forceinline__ void pin_running() {
#pragma unroll
    for (int row = 0; row < I::kRows; ++row) pin(running[row]);
  }

 private:
  static __device__ __forceinline__ int offset(int c) {
    return (c - I::kParkedChunks) * I::kConsumers * 16;
  }
};

}  // namespace comet::sm90
