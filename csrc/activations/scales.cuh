// SPDX-License-Identifier: Apache-2.0
// From the values of a token to the scales of its blocks.
#pragma once

#include "comet/layout.cuh"
#include "comet/rounding.cuh"
#include "sources.cuh"

namespace comet {

constexpr float kInt4Levels = 7.0f, kUint4Levels = 15.0f, kInt8Levels = 127.0f;
constexpr float kMaxMultiple = 18.0f, kMaxMultipleZeroPoint = 8.0f;

// Options known when the kernel is compiled: the mode that is meant to be fast.
struct FastOptions {
  static constexpr bool kHadamard = false;
  static __device__ __forceinline__ bool vectors(const QuantizeParams&) { return true; }
  static __device__ __forceinline__ int mode(const QuantizeParams&) { return kTokenBlockMultiple; }
  static __device__ __forceinline__ int layout(const QuantizeParams&) { return kSm90; }
  static __device__ __forceinline__ bool zero_point(const QuantizeParams&) { return false; }
};

// Options read when it runs, save whether there are rotated values to keep.
template <bool Hadamard>
struct AnyOptions {
  static constexpr bool kHadamard = Hadamard;
  static __device__ __forceinline__ bool vectors(const QuantizeParams& p) { return p.vectors; }
  static __device__ __forceinline__ int mode(const QuantizeParams& p) { return p.args.mode; }
  static __device__ __forceinline__ int layout(const QuantizeParams& p) { return p.args.layout; }
  static __device__ __forceinline__ bool zero_point(const QuantizeParams& p) {
    return p.args.zero_point;
  }
};

// How far a set of values reaches from zero. Without a zero point both directions count as `above`.
struct Extent {
  float above;
  float below;

  __device__ __forceinline__ float size() const { return above + below; }
};

// What all blocks of a token reach to.
struct TokenExtent {
  float largest4;  // largest size of an INT4 block
  float largest8;  // largest size of an INT8 block
  Extent union4;   // all INT4 blocks together; mode token only
};

struct TokenScale {
  float largest4;  // largest size among INT4 blocks
  float below4;    // how far the INT4 part reaches below zero; mode token with zero points
  float base;
  float scale8;
};

// What one block is quantized with; small integers as floats.
struct BlockScale {
  float scale;
  float multiple;
  float zero;
};

// Largest magnitude of a block's 16-bit values: magnitudes order like their bits.
template <class T>
__device__ __forceinline__ float warp_largest_magnitude(uint2 word) {
  const unsigned pair = Scalar<T>::larger_magnitudes(word.x, word.y);
  const unsigned larger = max(pair & 0xffff, pair >> 16);
  return Scalar<T>::to_float(__reduce_max_sync(kAllLanes, larger));
}

__device__ __forceinline__ Extent block_extent(const float (&v)[4], bool zero_point) {
  if (zero_point) {
    const float above = fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), 0.0f);
    const float below = fmaxf(-fminf(fminf(v[0], v[1]), fminf(v[2], v[3])), 0.0f);
    return {warp_max_nonnegative(above), warp_max_nonnegative(below)};
  }
  const float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  return {warp_max_nonnegative(largest), 0.0f};
}

// Maxima over the thread block of four values that are not negative.
__device__ __forceinline__ float4 block_max(const Place& place, float4 value, bool all_four) {
  __shared__ float4 partial[kMaxWarps];
  value.x = warp_max_nonnegative(value.x);
  value.y = warp_max_nonnegative(value.y);
  if (all_four) value.z = warp_max_nonnegative(value.z);
  if (all_four) value.w = warp_max_nonnegative(value.w);
  if (place.lane == 0) partial[place.warp] = value;
  __syncthreads();
  value = place.lane < place.warps ? partial[place.lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  value.x = warp_max_nonnegative(value.x);
  value.y = warp_max_nonnegative(value.y);
  if (all_four) value.z = warp_max_nonnegative(value.z);
  if (all_four) value.w = warp_max_nonnegative(value.w);
  return value;
}

// Combines the extents of all blocks; each lane that owns a block brings its extent.
template <class Options>
__device__ __forceinline__ TokenExtent over_blocks(const QuantizeParams& p, const Place& place,
                                                   bool owns, bool is_int4, Extent extent) {
  const bool in4 = owns && is_int4, in8 = owns && !is_int4;
  const float4 mine = make_float4(in4 ? extent.size() : 0.0f, in8 ? extent.size() : 0.0f,
                                  in4 ? extent.above : 0.0f, in4 ? extent.below : 0.0f);
  const float4 all = block_max(place, mine, Options::mode(p) == kToken);
  return {all.x, all.y, {all.z, all.w}};
}

__device__ __forceinline__ float scale_of(float size, float levels) {
  return size > 0.0f ? __fdiv_rn(size, levels) : 1.0f;
}

template <class Options>
__device__ __forceinline__ TokenScale token_scale(const QuantizeParams& p,
                                                  const TokenExtent& extent) {
  const bool zero_point = Options::zero_point(p);
  TokenScale token;
  token.scale8 = scale_of(extent.largest8, kInt8Levels);
  token.below4 = extent.union4.below;
  token.largest4 = Options::mode(p) == kToken ? extent.union4.size() : extent.largest4;
  token.base = scale_of(token.largest4, zero_point ? kUint4Levels : kInt4Levels);
  if (Options::mode(p) == kTokenBlockMultiple && token.largest4 > 0.0f) {
    token.base = __fdiv_rn(token.base, zero_point ? kMaxMultipleZeroPoint : kMaxMultiple);
  }
  return token;
}

template <class Options>
__device__ __forceinline__ BlockScale block_scale(const QuantizeParams& p, bool is_int4,
                                                  Extent extent, const TokenScale& token) {
  const int mode = Options::mode(p);
  const bool zero_point = Options::zero_point(p);
  BlockScale result = {1.0f, 1.0f, 0.0f};
  if (!is_int4) {
    result.scale = mode == kTokenBlock ? scale_of(extent.size(), kInt8Levels) : token.scale8;
    return result;
  }
  if (mode == kTokenBlockMultiple) {
    const float limit = zero_point ? kMaxMultipleZeroPoint : kMaxMultiple;
    const float largest = token.largest4 > 0.0f ? token.largest4 : 1.0f;
    const float ratio = __fdiv_rn(__fmul_rn(limit, extent.size()), largest);
    result.multiple = fminf(fmaxf(ceilf(ratio), 1.0f), limit);
    result.scale = __fmul_rn(token.base, result.multiple);
  } else if (mode == kTokenBlock) {
    result.scale = scale_of(extent.size(), zero_point ? kUint4Levels : kInt4Levels);
  } else {
    result.scale = token.base;
  }
  if (zero_point) {
    const float below = mode == kToken ? token.below4 : extent.below;
    result.zero = fminf(fmaxf(rintf(__fdiv_rn(below, result.scale)), 0.0f), kUint4Levels);
  }
  return result;
}

}  // namespace comet
