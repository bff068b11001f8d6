// SPDX-License-Identifier: Apache-2.0
// Scores of one page: 64 tokens as rows of four tiles, query heads as columns.
//
// Keys are k = code * s[c] + z[c], so q . k = sum_c code * (q[c] s[c]) + q . z: the channel scales
// are multiplied into the query, once a page, and q . z is one number a head and page. Rounded to
// fp16, q[c] s[c] would be the largest error of all (2^-12 of each product with codes up to 15, and
// scores are exponents), so what the rounding took is a second operand.
#pragma once

#include "comet/attention/fragments.cuh"
#include "comet/attention/params.cuh"

namespace comet::kv4 {

// Of this lane: tokens first_token(lane) + 4 tile (+ 2 for elements 2, 3), heads 2 t and 2 t + 1.
// The exponent (of 2) of a score is sums * factor + offset.
template <class I>
struct Scores {
  float sums[I::kHeadTiles][kTokenTiles][4] = {};
  float factor[I::kHeadTiles][2];   // of elements 0 and 1
  float factor8[I::kHeadTiles][2];  // of elements 2 and 3
  float offset[I::kHeadTiles][2];
};

// The query heads of one KV head, as columns of the second operand. Values are divided by a power
// of two so that the largest of each head lies in [0.5, 1): times an fp16 scale they stay finite.
template <class I>
struct Query {
  // Channels 32 j + 8 t + 2 i and + 1: operand i % 2 of tile 2 j + i / 2.
  uint32_t b[I::kHeadTiles][I::kDim / 32][4];
  float factor[I::kHeadTiles][2];  // of exponents, for heads 2 t and 2 t + 1

  // Sixteen bytes of head `head` of the group: channels 32 j + 8 t .. + 7, as halves of T.
  static __device__ __forceinline__ uint4 load(const uint8_t* rows, int group, int head, int j,
                                               int lane) {
    if (head >= group) return make_uint4(0, 0, 0, 0);
    return load_global(rows + (head * I::kDim + 32 * j + 8 * (lane % 4)) * 2);
  }

  __device__ __forceinline__ Query(const uint8_t* rows, int group, float score_factor, int lane) {
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
      float largest = 0.0f;
#pragma unroll
      for (int j = 0; j < I::kDim / 32; ++j) {
        const uint4 raw = load(rows, group, 8 * n + lane / 4, j, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          b[n][j][i] = word_of(raw, i);
          const float2 pair = to_floats<typename I::T>(word_of(raw, i));
          largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
      }
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      // Biased exponent of the power of two above it, kept where the reciprocal is a normal number.
      const int biased = min(max(static_cast<int>(bits_of(largest) >> 23) + 1, 1), 253);
      const float down = float_of(static_cast<uint32_t>(254 - biased) << 23);
#pragma unroll
      for (int j = 0; j < I::kDim / 32; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = to_floats<typename I::T>(b[n][j][i]);
          b[n][j][i] = to_pair<Fp16>(pair.x * down, pair.y * down);
        }
      }
      const float up = float_of(static_cast<uint32_t>(biased) << 23) * score_factor;
      factor[n][0] = shuffle(up, lane % 4 * 8);
      factor[n][1] = shuffle(up, lane % 4 * 8 + 4);
    }
  }
};

// Scores of a full page.
template <class I>
__device__ __forceinline__ void score_codes(const uint8_t* page, const Query<I>& query, int lane,
                                            Scores<I>& scores) {
  using P = typename I::P;
  const auto* codes = reinterpret_cast<const uint4*>(page + P::kKeyCodes) + lane;
  const auto* scale = reinterpret_cast<const uint4*>(page + P::kKeyScale) + lane % 4;
  const auto* zero = reinterpret_cast<const uint4*>(page + P::kKeyZero) + lane % 4;
  // Rows g of `even` and rows g + 8 of `odd` hold half of q . z each, the same in every row.
  float even[I::kHeadTiles][4] = {}, odd[I::kHeadTiles][4] = {};
#pragma unroll
  for (int j = 0; j < I::kDim / 32; ++j) {
    const uint4 z = zero[4 * j], s = scale[4 * j];
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
      const uint32_t (&q)[4] = query.b[n][j];
      mma<Fp16>(even[n], z.x, z.y, z.z, z.w, q[0], q[2]);
      mma<Fp16>(odd[n], z.x, z.y, z.z, z.w, q[1], q[3]);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 chunk = codes[(2 * j + k) * 32];
      uint32_t b[I::kHeadTiles][2], rest[I::kHeadTiles][2];
#pragma unroll
      for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t q = query.b[n][j][2 * k + i], channel_scale = word_of(s, 2 * k + i);
          b[n][i] = multiply_halves(q, channel_scale);
          rest[n][i] = rest_of_product(q, channel_scale, b[n][i]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < I::kHeadTiles; ++n) {
          mma_codes(scores.sums[n][tile], word_of(chunk, tile), b[n][0], b[n][1]);
          mma_codes(scores.sums[n][tile], word_of(chunk, tile), rest[n][0], rest[n][1]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        const float2 sums = separate(scores.sums[n][tile], e);
        scores.sums[n][tile][e] = sums.x;
        scores.sums[n][tile][2 + e] = sums.y;
      }
      scores.factor[n][e] = query.factor[n][e] * (1.0f / kUnit);
      scores.factor8[n][e] = query.factor[n][e] * (1.0f / kUnit8);
      scores.offset[n][e] = (even[n][e] + odd[n][2 + e]) * query.factor[n][e];
    }
  }
}

// Adds to the scores of an unfinished page those of its tokens first .. first + count, whose keys
// are `rows`.
template <class I>
__device__ __forceinline__ void score_tail(const uint8_t* rows, int first, int count,
                                           const uint8_t* query_rows, int group, int lane,
                                           Scores<I>& scores) {
#pragma unroll 1
  for (int j = 0; j < I::kDim / 32; ++j) {
    const uint8_t* column = rows + (32 * j + 8 * (lane % 4)) * 2;
    uint4 b[I::kHeadTiles];
#pragma unroll
    for (int n = 0; n < I::kHeadTiles; ++n) {
      b[n] = Query<I>::load(query_rows, group, 8 * n + lane / 4, j, lane);
    }
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      uint4 a[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_token(lane) + 4 * tile + 2 * half - first;
        a[half] = row >= 0 && row < count
                      ? *reinterpret_cast<const uint4*>(column + row * I::kRowBytes)
                      : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int n = 0; n < I::kHeadTiles; ++n) {
        float (&s)[4] = scores.sums[n][tile];
        mma<typename I::T>(s, a[0].x, a[1].x, a[0].y, a[1].y, b[n].x, b[n].y);
        mma<typename I::T>(s, a[0].z, a[1].z, a[0].w, a[1].w, b[n].z, b[n].w);
      }
    }
  }
}

// Scores that are sums as they stand.
template <class I>
__device__ __forceinline__ void set_factor(Scores<I>& scores, float score_factor) {
#pragma unroll
  for (int n = 0; n < I::kHeadTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      scores.factor[n][e] = scores.factor8[n][e] = score_factor;
      scores.offset[n][e] = 0.0f;
    }
  }
}

// Hides tokens outside begin .. end of the page.
template <class I>
__device__ __forceinline__ void hide(Scores<I>& scores, int begin, int end, int lane) {
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first_token(lane) + 4 * tile + 2 * half;
      if (token < begin || token >= end) {
#pragma unroll
        for (int n = 0; n < I::kHeadTiles; ++n) {
          scores.sums[n][tile][2 * half] = scores.sums[n][tile][2 * half + 1] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace comet::kv4
