// SPDX-License-Identifier: Apache-2.0
// Where a token's values come from before they are permuted and quantized.
//
// A source loads the words of one token (four neighbouring channels a word) and turns them into the
// 16-bit values that the unfused operators would have written: it rounds where they round.
#pragma once

#include "comet/activations.h"
#include "comet/scalar.cuh"
#include "comet/warp.cuh"

namespace comet {

constexpr int kMaxWarps = 32;

// The launcher's view of CometQuantizeArgs with what it derived.
struct QuantizeParams {
  CometQuantizeArgs args;
  bool vectors;  // every row pointer is 8-byte aligned and K is a multiple of 4
};

// Four channels of one row from `channel` on; channels from K on are zero.
__device__ __forceinline__ uint2 load_word(const QuantizeParams& p, const void* base,
                                           int64_t offset, int channel) {
  const auto* row = static_cast<const unsigned short*>(base) + offset;
  const int channels = p.args.channels;
  if (p.vectors) {
    return channel < channels ? *reinterpret_cast<const uint2*>(row + channel) : make_uint2(0, 0);
  }
  unsigned bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = channel + i < channels ? row[channel + i] : 0;
  return make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

__device__ __forceinline__ void store_word(const QuantizeParams& p, void* base, int64_t offset,
                                           int channel, uint2 word) {
  auto* row = static_cast<unsigned short*>(base) + offset;
  if (p.vectors) {
    if (channel < p.args.channels) *reinterpret_cast<uint2*>(row + channel) = word;
    return;
  }
  const unsigned short bits[4] = {
      static_cast<unsigned short>(word.x & 0xffff), static_cast<unsigned short>(word.x >> 16),
      static_cast<unsigned short>(word.y & 0xffff), static_cast<unsigned short>(word.y >> 16)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (channel + i < p.args.channels) row[channel + i] = bits[i];
  }
}

// Channel of word j of this thread: warp w owns blocks w, w + warps, ...
__device__ __forceinline__ int word_channel(int j) {
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  return (warp + j * warps) * 128 + static_cast<int>(threadIdx.x % kWarp) * 4;
}

template <class T>
struct PlainSource {
  static constexpr int kMaxWords = 8;  // Kp up to 32,768

  template <int Words>
  static __device__ __forceinline__ void load(const QuantizeParams& p, int token,
                                              uint2 (&words)[Words]) {
    const int64_t row = token * p.args.x_stride;
#pragma unroll
    for (int j = 0; j < Words; ++j) words[j] = load_word(p, p.args.x, row, word_channel(j));
  }
};

// silu(gate) * up, silu rounded to T first.
template <class T>
struct SiluSource {
  static constexpr int kMaxWords = 8;

  template <int Words>
  static __device__ __forceinline__ void load(const QuantizeParams& p, int token,
                                              uint2 (&words)[Words]) {
    uint2 ups[Words];
    PlainSource<T>::load(p, token, words);
    const int64_t row = token * p.args.second_stride;
#pragma unroll
    for (int j = 0; j < Words; ++j) ups[j] = load_word(p, p.args.second, row, word_channel(j));
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      float gate[4], up[4];
      unpack4<T>(words[j], gate);
      unpack4<T>(ups[j], up);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float silu = __fdiv_rn(gate[i], 1.0f + expf(-gate[i]));
        gate[i] = round_to<T>(silu) * up[i];
      }
      words[j] = pack4<T>(gate);
    }
  }
};

// T(T(h / rms(h)) * weight) with h = T(x + residual); h is kept when sum_out is given.
template <class T>
struct RmsNormSource {
  static constexpr int kMaxWords = 4;  // Kp up to 16,384: hidden sizes, not the wider MLP ones

  template <int Words>
  static __device__ __forceinline__ void load(const QuantizeParams& p, int token,
                                              uint2 (&words)[Words]) {
    PlainSource<T>::load(p, token, words);
    uint2 weights[Words];
#pragma unroll
    for (int j = 0; j < Words; ++j) weights[j] = load_word(p, p.args.weight, 0, word_channel(j));
    if (p.args.second != nullptr) add_residual(p, token, words);
    const float scale = rsqrtf(row_square_sum<Words>(words) / p.args.channels + p.args.epsilon);
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      float h[4], weight[4];
      unpack4<T>(words[j], h);
      unpack4<T>(weights[j], weight);
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] = round_to<T>(h[i] * scale) * weight[i];
      words[j] = pack4<T>(h);
    }
  }

 private:
  template <int Words>
  static __device__ __forceinline__ void add_residual(const QuantizeParams& p, int token,
                                                      uint2 (&words)[Words]) {
    uint2 residuals[Words];
    const int64_t row = token * p.args.second_stride;
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      residuals[j] = load_word(p, p.args.second, row, word_channel(j));
    }
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      float h[4], residual[4];
      unpack4<T>(words[j], h);
      unpack4<T>(residuals[j], residual);
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] += residual[i];
      words[j] = pack4<T>(h);
      if (p.args.sum_out != nullptr) {
        const int64_t out = static_cast<int64_t>(token) * p.args.channels;
        store_word(p, p.args.sum_out, out, word_channel(j), words[j]);
      }
    }
  }

  template <int Words>
  static __device__ __forceinline__ float row_square_sum(const uint2 (&words)[Words]) {
    __shared__ float partial[kMaxWarps];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      float h[4];
      unpack4<T>(words[j], h);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += h[i] * h[i];
    }
    sum = warp_sum(sum);
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) partial[threadIdx.x / kWarp] = sum;
    __syncthreads();
    return warp_sum(lane < blockDim.x / kWarp ? partial[lane] : 0.0f);
  }
};

}  // namespace comet
