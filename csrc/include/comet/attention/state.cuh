// SPDX-License-Identifier: Apache-2.0
// Running softmax and weighted sum of values of one warp.
//
// Values are v = code * s[token] + z[token]: the token scales are multiplied into the
// probabilities, and sum p * z is one number a head, as is sum p; one product with rows of ones and
// of z gives both. Query heads are columns throughout.
//
// Probabilities are fp16 and taken relative to a power of two of each head that lies below the
// largest: one token may have nearly all of the weight and a value near zero (an attention sink),
// and the result is then made of probabilities of 2^-20, times scales of 2^-10. Because the largest
// may also grow for a while, sums are rarely rescaled.
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
  float base[I::kHeadTiles][2];       // exponent of the probability that counts as one

  __device__ __forceinline__ State() {
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) base[n][0] = base[n][1] = -INFINITY;
  }

  // Adds a page; only the first `tokens` of its values are looked at.
  __device__ __forceinline__ void add(const Scores<I>& scores, const uint8_t* page, int tokens,
                                      int lane) {
    raise_base(scores, has_large_scale(page, tokens, lane));
    uint32_t p[I::kHeadTiles][kTokenTiles][2];
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
      const float offset[2] = {scores.offset[n][0] - base[n][0], scores.offset[n][1] - base[n][1]};
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
  // Exponents of the largest probability: what it gets, and what it may grow to. Times a scale
  // below 2 it stays finite.
  static constexpr float kRaised = 10.0f, kLargest = 14.0f;

  // Scales or zeros of two tokens, those of tile `tile` from its place 2 t + 8 half on.
  static __device__ __forceinline__ uint32_t of_tokens(const uint4* words, int tile, int half,
                                                       int tokens, int lane) {
    const uint32_t word = word_of(words[tile / 2], tile % 2 * 2 + half);
    if (tokens == kPage) return word;
    // What was never written may be NaN, which no probability of zero takes away.
    const int rest = tokens - (16 * (lane % 4) + 4 * tile + 2 * half);
    return rest >= 2 ? word : rest == 1 ? word & 0xffffu : 0u;
  }

  // Whether the scale of any value is 2 or more.
  static __device__ __forceinline__ bool has_large_scale(const uint8_t* page, int tokens,
                                                         int lane) {
    const auto* scale = reinterpret_cast<const uint4*>(page + P::kValueScale) + lane % 4 * 2;
    uint32_t bits = 0;
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      bits |= of_tokens(scale, tile, 0, tokens, lane) | of_tokens(scale, tile, 1, tokens, lane);
    }
    return any_lane((bits & 0x40004000u) != 0);
  }

  __device__ __forceinline__ void raise_base(const Scores<I>& scores, bool large_scale) {
    const float most = large_scale ? 0.0f : kLargest, after = large_scale ? 0.0f : kRaised;
    float largest[I::kHeadTiles][2];
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
        float of_page = fmaxf(low * scores.factor[n][e], high * scores.factor8[n][e]);
        of_page = fmaxf(of_page, shuffle_xor(of_page, 4));
        of_page = fmaxf(of_page, shuffle_xor(of_page, 8));
        of_page = fmaxf(of_page, shuffle_xor(of_page, 16));
        largest[n][e] = of_page + scores.offset[n][e];
        raised |= largest[n][e] > base[n][e] + most;
      }
    }
    if (!any_lane(raised)) return;
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float next = fmaxf(base[n][e], largest[n][e] - after);
        const float shrink = exp2_approximate(base[n][e] - next);
        base[n][e] = next;
#pragma unroll
        for (int i = e; i < 4; i += 2) {
          sums[n][i] *= shrink;
#pragma unroll
          for (int tile = 0; tile < P::kValueTiles; ++tile) values[n][tile][i] *= shrink;
        }
      }
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
        s[half] = of_tokens(scale, tile, half, tokens, lane);
        z[half] = of_tokens(zero, tile, half, tokens, lane);
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
