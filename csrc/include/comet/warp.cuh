// SPDX-License-Identifier: Apache-2.0
// Reductions within a warp; every lane gets the result.
#pragma once

namespace comet {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Maximum of values that are not negative: their bit patterns order like unsigned integers, so one
// REDUX does the work of five shuffles.
__device__ __forceinline__ float warp_max_nonnegative(float value) {
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(value)));
}

__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(kAllLanes, value); }

// Sum in a fixed order, so that a rerun gives the same bits.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

}  // namespace comet
