// SPDX-License-Identifier: Apache-2.0
// Puts together what warps, and then thread blocks, computed of one sequence and KV head.
//
// Each part is an unnormalized sum of values with the exponent it is relative to and its sum of
// probabilities. Parts are always added in the same order, so that a rerun gives the same bits.
#pragma once

#include "comet/attention/state.cuh"

namespace comet::kv4 {

// Four channels of one query head.
struct Sum {
  float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float exponent = -INFINITY;
  float total = 0.0f;

  // Without a branch, so that the loads of several sums stand side by side.
  __device__ __forceinline__ void add(const Sum& other) {
    const float next = fmaxf(exponent, other.exponent);
    const float base = next == -INFINITY ? 0.0f : next;
    const float a = exp2_approximate(exponent - base);
    const float b = exp2_approximate(other.exponent - base);
    values.x = values.x * a + other.values.x * b;
    values.y = values.y * a + other.values.y * b;
    values.z = values.z * a + other.values.z * b;
    values.w = values.w * a + other.values.w * b;
    total = total * a + other.total * b;
    exponent = next;
  }

  // Adds the sum of the lane whose number differs by `lanes`; both get the same bits.
  __device__ __forceinline__ void add_lane(int lanes, bool second) {
    Sum other;
    other.values = make_float4(shuffle_xor(values.x, lanes), shuffle_xor(values.y, lanes),
                               shuffle_xor(values.z, lanes), shuffle_xor(values.w, lanes));
    other.exponent = shuffle_xor(exponent, lanes);
    other.total = shuffle_xor(total, lanes);
    if (second) {
      Sum first = other;
      first.add(*this);
      *this = first;
    } else {
      add(other);
    }
  }
};

// Size of a part: [group][D] values, then [group] pairs (exponent, total), in whole 16 bytes.
template <class I>
__device__ __forceinline__ int part_floats(int group) {
  return group * I::kDim + (group + 1) / 2 * 4;
}

// A warp's part, into shared memory.
template <class I>
__device__ __forceinline__ void store_part(const State<I>& state, float* part, int group,
                                           int lane) {
  using P = typename I::P;
  const int row = lane / 4;
#pragma unroll
  for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int head = 8 * n + lane % 4 * 2 + e;
      if (head >= group) continue;
      auto* to = reinterpret_cast<float4*>(part + head * I::kDim + row * P::kLaneChannels);
#pragma unroll
      for (int i = 0; i < P::kValueTiles; i += 2) {
        const float2 a = state.result(n, i, e), b = state.result(n, i + 1, e);
        to[i / 2] = make_float4(a.x, a.y, b.x, b.y);
      }
      if (row == 0) {
        auto* of_head = reinterpret_cast<float2*>(part + group * I::kDim) + head;
        *of_head = make_float2(state.base[n][e], state.sums[n][e]);
      }
    }
  }
}

// The result's four channels `at` of a KV head's [group][D].
template <class I>
__device__ __forceinline__ void store_result(const Sum& sum, uint8_t* out, int at) {
  const float share = 1.0f / sum.total;
  const uint32_t low = to_pair<typename I::T>(sum.values.x * share, sum.values.y * share);
  const uint32_t high = to_pair<typename I::T>(sum.values.z * share, sum.values.w * share);
  reinterpret_cast<uint2*>(out)[at] = make_uint2(low, high);
}

// One thread block's part of an item that several share.
__device__ __forceinline__ float* part_of(const DecodeParams& p, const Item& item, const Runs& runs,
                                          int block, int floats) {
  // A run's first item is handed on at place 0; another is its last and lies at place 1.
  const int place = runs.begin(block) >= item.start ? 0 : 1;
  return p.partials + (static_cast<int64_t>(block) * 2 + place) * floats;
}

constexpr int kAtOnce = 8;  // parts that a thread asks for before it adds the first

// Adds up the parts that thread blocks `first` .. `last` have delivered of an item. Several lanes
// share four channels and take every so many of the blocks.
template <class I>
__device__ __forceinline__ void merge_blocks(const DecodeParams& p, const Item& item,
                                             const Runs& runs, int first, int last, uint8_t* out) {
  const int floats = part_floats<I>(p.group), quads = p.group * I::kDim / 4;
  int lanes = 1;
  while (lanes < 32 && lanes * quads < static_cast<int>(blockDim.x) && lanes <= last - first) {
    lanes *= 2;
  }
  const int mine = threadIdx.x % lanes, step = blockDim.x / lanes;
  for (int base = 0; base < quads; base += step) {
    const int at = base + threadIdx.x / lanes, quad = min(at, quads - 1);
    Sum sum;
    for (int block = first + mine; block <= last; block += kAtOnce * lanes) {
      Sum others[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Beyond the last one it is read again, and counts for nothing.
        const int other = block + i * lanes;
        const float* part = part_of(p, item, runs, min(other, last), floats);
        const auto* of_head = reinterpret_cast<const float2*>(part + p.group * I::kDim);
        const float2 head = load_shared_result(of_head + quad / (I::kDim / 4));
        others[i].values = load_shared_result(reinterpret_cast<const float4*>(part) + quad);
        others[i].exponent = other <= last ? head.x : -INFINITY;
        others[i].total = head.y;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum.add(others[i]);
    }
    for (int distance = 1; distance < lanes; distance *= 2) {
      sum.add_lane(distance, (mine & distance) != 0);
    }
    if (at < quads && mine == 0) store_result<I>(sum, out, at);
  }
}

}  // namespace comet::kv4
