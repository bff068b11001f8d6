// SPDX-License-Identifier: Apache-2.0
// Asymmetric INT4 with fp16 scale and zero, bit for bit as comet/formats/kv4.py:
// scale = fp16((high - low) / 15), or 1 where that is 0; zero = fp16(low + 0), so that -0 is 0;
// code = clamp(rint((x - zero) / scale), 0, 15) in fp32 with IEEE division.
#pragma once

#include "comet/attention/instructions.cuh"

namespace comet::kv4 {

constexpr float kLevels = 15.0f;
// Adding this rounds a small number to an integer, ties to even, in the low bits of the mantissa.
constexpr float kRoundingBias = 12582912.0f;  // 1.5 * 2^23

struct Scale {
  float scale, reciprocal, zero;
  uint32_t pair;  // halves: scale, zero

  static __device__ __forceinline__ Scale of(float low, float high) {
    const float step = divide(high - low, kLevels);
    Scale s;
    s.pair = to_pair<Fp16>(step, low + 0.0f);
    if ((s.pair & 0xffff) == 0) s.pair |= 0x3c00;  // 1
    const float2 restored = to_floats<Fp16>(s.pair);
    s.scale = restored.x;
    s.zero = restored.y;
    s.reciprocal = divide(1.0f, restored.x);
    return s;
  }
};

// Codes of values with a scale each. A multiplication by the reciprocal is off by less than 2^-18;
// only where it lies near a tie could it round otherwise than the quotient, and there it divides.
template <int kCount>
__device__ __forceinline__ void codes_of(const float (&x)[kCount], const Scale (&scale)[kCount],
                                         uint32_t (&codes)[kCount]) {
  constexpr float kSafe = 0.5f - 0x1p-13f;
  float rounded[kCount], worst = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float d = x[i] - scale[i].zero;
    rounded[i] = fmaf(d, scale[i].reciprocal, kRoundingBias) - kRoundingBias;
    worst = fmaxf(worst, fabsf(fmaf(d, scale[i].reciprocal, -rounded[i])));
  }
  if (worst > kSafe) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      rounded[i] = rintf(divide(x[i] - scale[i].zero, scale[i].scale));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    codes[i] = bits_of(fminf(fmaxf(rounded[i], 0.0f), kLevels) + kRoundingBias) & 0xf;
  }
}

}  // namespace comet::kv4
