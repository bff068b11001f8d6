// SPDX-License-Identifier: Apache-2.0
// The contract's pinned arithmetic: code = clamp(rint(x / scale)) with IEEE division.
#pragma once

namespace comet {

// Adding this to |q| < 2^22 rounds q to an integer, ties to even, and leaves that integer in the
// low mantissa bits: no conversion instruction, and the low byte is the int8 code.
constexpr float kRoundingBias = 12582912.0f;  // 1.5 * 2^23

// A scale and its reciprocal; scales so small that the reciprocal may overflow divide exactly.
struct Divisor {
  float scale;
  float reciprocal;

  static __device__ __forceinline__ Divisor of(float scale) {
    return {scale, scale >= 0x1p-100f ? __frcp_rn(scale) : 0.0f};
  }
};

// clamp(rint(x / scale), low, high) of four values, bit for bit as by IEEE division.
//
// x * (1/scale) is off by less than 2^-22 relative, 2^-15 for quotients of up to 128. Only where it
// lies near a tie can it round otherwise than the quotient: those (about one warp in thirty)
// divide. Elsewhere |x| never exceeds the magnitude that the scale was made from, so that nothing
// is to be clamped, unless the caller's range is narrower than that (`clamp`).
__device__ __forceinline__ void rounded_quotients(const float (&x)[4], Divisor divisor, float low,
                                                  float high, bool clamp, float (&rounded)[4]) {
  constexpr float kSafe = 0.5f - 0x1p-13f;
  float worst = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rounded[i] = __fmaf_rn(x[i], divisor.reciprocal, kRoundingBias) - kRoundingBias;
    worst = fmaxf(worst, fabsf(__fmaf_rn(x[i], divisor.reciprocal, -rounded[i])));
  }
  if (worst > kSafe || divisor.reciprocal == 0.0f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = rintf(__fdiv_rn(x[i], divisor.scale));
    clamp = true;
  }
  if (clamp) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = fminf(fmaxf(rounded[i], low), high);
  }
}

// Four integers of int8 range, held as floats, times a factor that keeps them there, as bytes.
__device__ __forceinline__ unsigned pack_bytes(const float (&v)[4], float factor) {
  unsigned bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bits[i] = __float_as_uint(__fmaf_rn(v[i], factor, kRoundingBias));
  }
  return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040),
                     0x5410);
}

}  // namespace comet
