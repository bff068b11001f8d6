// SPDX-License-Identifier: Apache-2.0
// From exact integer sums to outputs: y = channel_scale * (base * I4 + scale8 * I8) + bias.
//
// Every rounding step is spelled out, in the order of the reference.
#pragma once

#include "comet/scalar.cuh"
#include "comet/sm80/block.cuh"

namespace comet::sm80 {

__device__ __forceinline__ uint32_t pack_output(float low, float high, bool fp16) {
  const uint32_t half = Scalar<__half>::from_float(low) | Scalar<__half>::from_float(high) << 16;
  const uint32_t brain =
      Scalar<__nv_bfloat16>::from_float(low) | Scalar<__nv_bfloat16>::from_float(high) << 16;
  return fp16 ? half : brain;
}

template <class I>
class Epilogue {
 public:
  __device__ __forceinline__ explicit Epilogue(const GemmParams& p) : p_(p), lane_(Lane::of<I>()) {}

  __device__ __forceinline__ void write(const TilePlace& at, const Sums<I>& sums4,
                                        const Sums<I>& sums8) {
    const int warp_token = at.token_tile * I::kTokens + lane_.warp_row * I::kTokenFragments * 16;
    const int warp_channel =
        at.row_tile * kTileChannels + lane_.warp_column * I::kChannelFragments * kGroupChannels;
#pragma unroll
    for (int half = 0; half < 2 * I::kTokenFragments; ++half) {
      const int token = warp_token + half * 8 + lane_.row;
      if (token >= p_.tokens) continue;
      const float base = p_.scales[token], scale8 = p_.scales[p_.tokens + token];
#pragma unroll
      for (int n = 0; n < I::kChannelFragments; ++n) {
        const int channel = warp_channel + n * kGroupChannels + 2 * lane_.quad;
        if (channel >= p_.channels) continue;
        float y[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int from = half % 2 * 2 + i;
          const int i4 = sums4[half / 2][n][from], i8 = sums8[half / 2][n][from];
          y[i] = finished(channel + i, base, i4, scale8, i8);
        }
        const size_t place = static_cast<size_t>(token) * p_.channels + channel;
        static_cast<uint32_t*>(p_.out)[place / 2] = pack_output(y[0], y[1], p_.fp16);
      }
    }
  }

 private:
  __device__ __forceinline__ float finished(int channel, float base, int i4, float scale8, int i8) {
    float y = __fmul_rn(base, __int2float_rn(i4));
    y = __fadd_rn(y, __fmul_rn(scale8, __int2float_rn(i8)));
    y = __fmul_rn(y, __ldg(p_.channel_scale + channel));
    return p_.bias == nullptr ? y : __fadd_rn(y, __ldg(p_.bias + channel));
  }

  const GemmParams& p_;
  Lane lane_;
};

}  // namespace comet::sm80
