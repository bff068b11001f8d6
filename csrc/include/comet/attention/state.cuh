// SPDX-License-Identifier: Apache-2.0
// Running softmax and weighted sum of values of one warp.
//
// Values are v = code * s[token] + z[token]: the token scales are multiplied into the
// probabilities, and sum p * z is one number a head, as is sum p; one product with rows of ones and
// of z gives both. Query heads are columns throughout.
#pragma once

#include "comet/attention/scores.cuh"

namespace comet::kv4 {

template <class I>
struct State {
  using P = typename I::P;

  // Low nibbles of tile i are channels kLaneChannels * g + 2 i, high nibbles the channels beside
  // them.
  float values[I::kHeadTiles][P::kValueTiles][4] = {};
  float sums[I::kHeadTiles][4] = {};  // elements 0, 1: sum p; 2, 3: sum p * z
  float maximum[I::kHeadTiles][2];    // of the exponents so far

  __device__ __forceinline__ State() {
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) maximum[n][0] = maximum[n][1] = -INFINITY;
  }

  // Adds a page; only the first `tokens` of its values are looked at.
  __device__ __forceinline__ void add(const Scores<I>& scores, const uint8_t* page, int tokens,
                                      int lane) {
    raise_maximum(scores);
    uint32_t p[I::kHeadTiles][kTokenTiles][2];
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
      const float offset[2] = {scores.offset[n][0] - maximum[n][0],
                               scores.offset[n][1] - maximum[n][1]};
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        const float (&s)[4] = scores.sums[n][tile];
        float e[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float factor = i < 2 ? scores.factor[n][i % 2] : scores.factor8[n][i % 2];
          e[i] = exp2_approximate(fmaf(s[i], factor, offset[i % 2]));
        }
        p[n][tile][0] = transpose(to_pair<Fp16>(e[0], e[1]));
        p[n][tile][1] = transpose(to_pair<Fp16>(e[2], e[3]));
      }
    }
    add_values(p, page, tokens, lane);
  }

  // Sums of 8 heads of kLaneChannels channels each become values of v: what `values` and `sums`
  // hold of element `e` (0: head 2 t, 1: head 2 t + 1) of tile `i`, rows g and g + 8.
  __device__ __forceinline__ float2 result(int n, int i, int e) const {
    const float2 codes = separate(values[n][i], e);
    return make_float2(fmaf(codes.x, 1.0f / kUnit, sums[n][2 + e]),
                       fmaf(codes.y, 1.0f / kUnit8, sums[n][2 + e]));
  }

 private:
  __device__ __forceinline__ void raise_maximum(const Scores<I>& scores) {
    float next[I::kHeadTiles][2];
    bool raised = false;
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float low = scores.sums[n][0][e], high = scores.sums[n][0][2 + e];
#pragma unroll
        for (int tile = 1; tile < kTokenTiles; ++tile) {
          low = fmaxf(low, scores.sums[n][tile][e]);
          high = fmaxf(high, scores.sums[n][tile][2 + e]);
        }
        float largest = fmaxf(low * scores.factor[n][e], high * scores.factor8[n][e]);
        largest = fmaxf(largest, shuffle_xor(largest, 4));
        largest = fmaxf(largest, shuffle_xor(largest, 8));
        largest = fmaxf(largest, shuffle_xor(largest, 16));
        next[n][e] = fmaxf(maximum[n][e], largest + scores.offset[n][e]);
        raised |= next[n][e] > maximum[n][e];
      }
    }
    if (!any_lane(raised)) return;
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float shrink = exp2_approximate(maximum[n][i % 2] - next[n][i % 2]);
        sums[n][i] *= shrink;
#pragma unroll
        for (int tile = 0; tile < P::kValueTiles; ++tile) values[n][tile][i] *= shrink;
      }
      maximum[n][0] = next[n][0];
      maximum[n][1] = next[n][1];
    }
  }

  __device__ __forceinline__ void add_values(const uint32_t (&p)[I::kHeadTiles][kTokenTiles][2],
                                             const uint8_t* page, int tokens, int lane) {
    const auto* codes = reinterpret_cast<const uint4*>(page + P::kValueCodes) + lane;
    const auto* scale = reinterpret_cast<const uint4*>(page + P::kValueScale) + lane % 4 * 2;
    const auto* zero = reinterpret_cast<const uint4*>(page + P::kValueZero) + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      uint32_t s[2], z[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s[half] = word_of(scale[tile / 2], tile % 2 * 2 + half);
        z[half] = word_of(zero[tile / 2], tile % 2 * 2 + half);
        if (tokens < kPage) {
          // What was never written may be NaN, which no probability of zero takes away.
          const int rest = tokens - (16 * (lane % 4) + 4 * tile + 2 * half);
          const uint32_t written = rest >= 2 ? 0xffffffffu : rest == 1 ? 0x0000ffffu : 0u;
          s[half] &= written;
          z[half] &= written;
        }
      }
      uint32_t b[I::kHeadTiles][2];
#pragma unroll
      for (int n = 0; n < I::kHeadTiles; ++n) {
        mma<Fp16>(sums[n], kOnes, z[0], kOnes, z[1], p[n][tile][0], p[n][tile][1]);
        b[n][0] = multiply_halves(p[n][tile][0], s[0]);
        b[n][1] = multiply_halves(p[n][tile][1], s[1]);
      }
#pragma unroll
      for (int c = 0; c < P::kValueChunks; ++c) {
        const uint4 chunk = codes[(tile * P::kValueChunks + c) * 32];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
#pragma unroll
          for (int n = 0; n < I::kHeadTiles; ++n) {
            mma_codes(values[n][4 * c + w], word_of(chunk, w), b[n][0], b[n][1]);
          }
        }
      }
    }
  }
};

}  // namespace comet::kv4
