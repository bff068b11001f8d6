// SPDX-License-Identifier: Apache-2.0
// The contract's pinned arithmetic: code = clamp(rint(x / scale)) with IEEE division.
#pragma once

namespace comet {

// Adding this to |q| < 2^22 leaves rint(q), ties to even, in the low mantissa bits.
constexpr float kRoundingBias = 12582912.0f;  // 1.5 * 2^23
constexpr int kRoundingBiasBits = 0x4B400000;

// A scale and its reciprocal; scales so small that the reciprocal may overflow divide exactly.
struct Divisor {
  float scale;
  float reciprocal;

  static __device__ __forceinline__ Divisor of(float scale) {
    return {scale, scale >= 0x1p-100f ? __frcp_rn(scale) : 0.0f};
  }
};

__device__ __forceinline__ int rounded_quotient(float x, float scale) {
  return __float2int_rn(__fdiv_rn(x, scale));
}

// rint(x / scale) of four values, bit for bit as by IEEE division.
//
// x * (1/scale) is off by less than 2^-21 relative, below 2^-14 for quotients of up to 128. Only
// where it lies that near to a tie can it round otherwise than the quotient: those (about one
// warp in fifty) divide.
__device__ __forceinline__ void rounded_quotients(const float (&x)[4], Divisor divisor,
                                                  int (&codes)[4]) {
  constexpr float kSafe = 0.5f - 0x1p-13f;
  float worst = divisor.reciprocal == 0.0f ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float quotient = x[i] * divisor.reciprocal;
    const float biased = quotient + kRoundingBias;
    worst = fmaxf(worst, fabsf(quotient - (biased - kRoundingBias)));
    codes[i] = __float_as_int(biased) - kRoundingBiasBits;
  }
  if (worst > kSafe) {
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = rounded_quotient(x[i], divisor.scale);
  }
}

}  // namespace comet
