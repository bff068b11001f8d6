// SPDX-License-Identifier: Apache-2.0
// One 128-channel block of K: tensor-core products, and their promotion into the tile's sums.
//
// With integer scales nothing is rounded: an INT4 block adds (dot + (8 - z) * rowsum) * (s * r), an
// INT8 block (dot + (8 - z) * rowsum) * s. The row sums of the activations come from the tensor
// core too, as products with ones.
#pragma once

#include "comet/sm80/convert.cuh"
#include "comet/sm80/loader.cuh"

namespace comet::sm80 {

// Ones, as weights: the product is the sum of the activations.
constexpr uint32_t kOnes4 = 0x11111111u, kOnes8 = 0x01010101u;

// Where a thread stands in the output tile and in its fragments; computed anew where it is used.
struct Lane {
  unsigned lane, warp_row, warp_column;
  unsigned row;   // token of an 8-row half, and channel of a weight fragment
  unsigned quad;  // which 4 bytes of K, and which pair of output channels

  template <class I>
  static __device__ __forceinline__ Lane of() {
    const unsigned thread = reread_thread(), warp = thread / 32, lane = thread % 32;
    return {lane, warp / I::kWarpColumns, warp % I::kWarpColumns, lane / 4, lane % 4};
  }
};

// Integer scale and 8 - zero point of a thread's two channels in a fragment.
struct ChannelTerms {
  int scale[2], offset[2];

  static __device__ __forceinline__ ChannelTerms of(uint32_t packed) {
    ChannelTerms terms;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      terms.scale[i] = packed >> (16 * i) & 0xff;
      terms.offset[i] = static_cast<int8_t>(packed >> (16 * i + 8));
    }
    return terms;
  }
};

template <class I>
class Block {
 public:
  __device__ __forceinline__ explicit Block(uint32_t stage) : lane_(Lane::of<I>()), stage_(stage) {}

  __device__ __forceinline__ void add_int4(Sums<I>& sums) {
    int multiples[kTokenHalves];
    load_multiples(multiples);
    uint32_t a[I::kTokenFragments][2][4];
    int row_sums[kTokenHalves];
#pragma unroll
    for (int m = 0; m < I::kTokenFragments; ++m) {
      load_operand<true>(a[m], m);
      int d[4] = {};
#pragma unroll
      for (int step = 0; step < 2; ++step) mma_s4(d, a[m][step], kOnes4, kOnes4);
      row_sums[2 * m] = d[0];
      row_sums[2 * m + 1] = d[2];
    }
#pragma unroll
    for (int n = 0; n < I::kChannelFragments; ++n) {
      const uint4 b = int4_weights(n);
      const ChannelTerms terms = channel_terms(n);
#pragma unroll
      for (int m = 0; m < I::kTokenFragments; ++m) {
        int d[4] = {};
        mma_s4(d, a[m][0], b.x, b.y);
        mma_s4(d, a[m][1], b.z, b.w);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int value = d[i] + terms.offset[i % 2] * row_sums[2 * m + i / 2];
          sums[m][n][i] += value * (terms.scale[i % 2] * multiples[2 * m + i / 2]);
        }
      }
    }
  }

  // A few channel fragments at a time: all converted weights would not fit in registers.
  __device__ __forceinline__ void add_int8(Sums<I>& sums) {
    int row_sums[kTokenHalves];
#pragma unroll
    for (int first = 0; first < I::kChannelFragments; first += I::kInt8Fragments) {
      uint32_t b[I::kInt8Fragments][kInt8Steps][2];
#pragma unroll
      for (int n = 0; n < I::kInt8Fragments; ++n) int8_weights(b[n], first + n);
#pragma unroll
      for (int m = 0; m < I::kTokenFragments; ++m) {
        uint32_t a[kInt8Steps][4];
        load_operand<false>(a, m);
        if (first == 0) {
          int d[4] = {};
#pragma unroll
          for (int step = 0; step < kInt8Steps; ++step) mma_s8(d, a[step], kOnes8, kOnes8);
          row_sums[2 * m] = d[0];
          row_sums[2 * m + 1] = d[2];
        }
#pragma unroll
        for (int n = 0; n < I::kInt8Fragments; ++n) {
          int d[4] = {};
#pragma unroll
          for (int step = 0; step < kInt8Steps; ++step) {
            mma_s8(d, a[step], b[n][step][0], b[n][step][1]);
          }
          const ChannelTerms terms = channel_terms(first + n);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int value = (d[i] >> kConversionShift<I::kFastConversion>)+terms.offset[i % 2] *
                              row_sums[2 * m + i / 2];
            sums[m][first + n][i] += value * terms.scale[i % 2];
          }
        }
      }
    }
  }

 private:
  static constexpr int kTokenHalves = 2 * I::kTokenFragments;
  static constexpr int kInt8Steps = 4;

  // 16 tokens of the whole block: lane l gives row l % 16, lanes from 16 on the second chunk of a
  // step. The swizzle is an XOR, so that a step is one too.
  template <bool kInt4, int kSteps>
  __device__ __forceinline__ void load_operand(uint32_t (&a)[kSteps][4], int fragment) {
    constexpr int kFragmentBytes = kMmaTokens * kBlock / (kInt4 ? 2 : 1);
    const unsigned row = lane_.warp_row * I::kTokenFragments * kMmaTokens + lane_.lane % 16;
    const uint32_t first = stage_ + I::kOperand + operand_offset<kInt4>(row, lane_.lane / 16) +
                           fragment * kFragmentBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_matrices(a[step], first ^ step * 32);
  }

  __device__ __forceinline__ void load_multiples(int (&multiples)[kTokenHalves]) {
    const uint32_t from =
        stage_ + I::kMultiples + (lane_.warp_row * 8 + lane_.row) * kTokenHalves * 4;
#pragma unroll
    for (int i = 0; i < kTokenHalves; i += 2) {
      const uint2 pair = load_shared2(from + i * 4);
      multiples[i] = pair.x;
      multiples[i + 1] = pair.y;
    }
  }

  // Group of 8 channels that fragment `fragment` of this warp holds.
  __device__ __forceinline__ unsigned group(int fragment) const {
    return lane_.warp_column * I::kChannelFragments + fragment;
  }

  __device__ __forceinline__ ChannelTerms channel_terms(int fragment) {
    const uint32_t terms = stage_ + I::kWeights + kCodeBytes;
    return ChannelTerms::of(load_shared(terms + group(fragment) * 16 + lane_.quad * 4));
  }

  __device__ __forceinline__ uint4 interleaved_words(int fragment) {
    return load_shared4(stage_ + I::kWeights + group(fragment) * kGroupBytes + lane_.lane * 16);
  }

  // Natural order: the 64 bytes of this lane's channel.
  __device__ __forceinline__ uint32_t natural_row(int fragment) const {
    return stage_ + I::kWeights + (group(fragment) * kGroupChannels + lane_.row) * (kBlock / 2);
  }

  __device__ __forceinline__ uint4 int4_weights(int fragment) {
    if constexpr (I::kInterleaved) return interleaved_words(fragment);
    const uint32_t row = natural_row(fragment) + 4 * lane_.quad;
    return {load_shared(row), load_shared(row + 16), load_shared(row + 32), load_shared(row + 48)};
  }

  __device__ __forceinline__ void int8_weights(uint32_t (&b)[kInt8Steps][2], int fragment) {
    if constexpr (I::kInterleaved) {
      const uint4 words = interleaved_words(fragment);
      convert_interleaved<I::kFastConversion>(words.x, b[0][0], b[0][1]);
      convert_interleaved<I::kFastConversion>(words.y, b[1][0], b[1][1]);
      convert_interleaved<I::kFastConversion>(words.z, b[2][0], b[2][1]);
      convert_interleaved<I::kFastConversion>(words.w, b[3][0], b[3][1]);
    } else {
      const uint32_t row = natural_row(fragment) + 2 * lane_.quad;
#pragma unroll
      for (int half = 0; half < 2 * kInt8Steps; ++half) {
        b[half / 2][half % 2] =
            convert_natural<I::kFastConversion>(load_shared_half(row + 8 * half));
      }
    }
  }

  Lane lane_;
  uint32_t stage_;
};

}  // namespace comet::sm80
