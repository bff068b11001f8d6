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

// Warps of a thread block whose warps own this many channel blocks each. From kWideWords of the
// source on, the registers for them leave room for 16 warps.
template <class Source>
__host__ __device__ constexpr int max_warps(int words) {
  return words >= Source::kWideWords ? 16 : kMaxWarps;
}

// The launcher's view of CometQuantizeArgs with what it derived.
struct QuantizeParams {
  CometQuantizeArgs args;
  bool vectors;  // every row pointer is 8-byte aligned and K is a multiple of 4
};

// A thread's place: warp w of a token's thread block owns channel blocks w, w + warps, ..., each
// lane four neighbouring channels (one word) of every block.
struct Place {
  int warp, lane, warps;

  static __device__ __forceinline__ Place of_thread() {
    // The shuffle tells the compiler that a warp index is the same in all lanes.
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
    return {warp, static_cast<int>(threadIdx.x) % kWarp, static_cast<int>(blockDim.x) / kWarp};
  }
  __device__ __forceinline__ int block(int j) const { return warp + j * warps; }
  __device__ __forceinline__ int channel(int j) const { return block(j) * 128 + lane * 4; }
};

// Word `channel / 4` of a row; channels from K on are zero.
template <class Options>
__device__ __forceinline__ uint2 load_word(const QuantizeParams& p, const unsigned short* row,
                                           unsigned channel) {
  const unsigned channels = p.args.channels;
  if (Options::vectors(p)) {
    return channel < channels ? __ldcg(reinterpret_cast<const uint2*>(row + channel))
                              : make_uint2(0, 0);
  }
  unsigned bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = channel + i < channels ? __ldcg(row + channel + i) : 0;
  return make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

// Start of a token's row. Opaque to the compiler, which would compute it anew for every word.
__device__ __forceinline__ const unsigned short* row_start(const void* base, int token,
                                                           int64_t stride) {
  const auto* row = static_cast<const unsigned short*>(base) + token * stride;
  asm("" : "+l"(row));
  return row;
}

template <class Options, int Words>
__device__ __forceinline__ void load_row(const QuantizeParams& p, const Place& place,
                                         const unsigned short* row, uint2 (&words)[Words]) {
#pragma unroll
  for (int j = 0; j < Words; ++j) words[j] = load_word<Options>(p, row, place.channel(j));
}

template <class Options, int Words>
__device__ __forceinline__ void store_row(const QuantizeParams& p, const Place& place, void* base,
                                          int64_t offset, const uint2 (&words)[Words]) {
  auto* row = static_cast<unsigned short*>(base) + offset;
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int channel = place.channel(j);
    if (Options::vectors(p)) {
      if (channel < p.args.channels) *reinterpret_cast<uint2*>(row + channel) = words[j];
    } else {
      const unsigned bits[4] = {words[j].x & 0xffff, words[j].x >> 16, words[j].y & 0xffff,
                                words[j].y >> 16};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (channel + i < p.args.channels) row[channel + i] = bits[i];
      }
    }
  }
}

template <class T>
struct PlainSource {
  static constexpr int kMaxWords = 24;  // Kp up to 49,152
  static constexpr int kWideWords = 24;

  template <class Options, int Words>
  static __device__ __forceinline__ void load(const QuantizeParams& p, const Place& place,
                                              int token, uint2 (&words)[Words]) {
    load_row<Options>(p, place, row_start(p.args.x, token, p.args.x_stride), words);
  }
};

// silu(gate) * up, silu rounded to T first.
template <class T>
struct SiluSource {
  static constexpr int kMaxWords = 8;  // Kp up to 32,768: two rows take twice the registers
  static constexpr int kWideWords = 16;  // none of its instances

  template <class Options, int Words>
  static __device__ __forceinline__ void load(const QuantizeParams& p, const Place& place,
                                              int token, uint2 (&words)[Words]) {
    load_row<Options>(p, place, row_start(p.args.x, token, p.args.x_stride), words);
    const unsigned short* row = row_start(p.args.second, token, p.args.second_stride);
    // Four words of `up` at a time: registers for more would spill in the widest instance.
    constexpr int kGroup = Words < 4 ? Words : 4;
#pragma unroll
    for (int first = 0; first < Words; first += kGroup) {
      uint2 ups[kGroup];
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        ups[j] = load_word<Options>(p, row, place.channel(first + j));
      }
#pragma unroll
      for (int j = 0; j < kGroup; ++j) multiply(words[first + j], ups[j]);
    }
  }

 private:
  static __device__ __forceinline__ void multiply(uint2& word, uint2 other) {
    float gate[4], silu[4];
    unpack4<T>(word, gate);
    // 1 + exp(-gate) would leave the range in which the short division is exact.
    const float least = fminf(fminf(gate[0], gate[1]), fminf(gate[2], gate[3]));
    const bool far = !(least > -80.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      silu[i] = quotient(gate[i], 1.0f + expf(-gate[i]));
    }
    if (far) {
#pragma unroll
      for (int i = 0; i < 4; ++i) silu[i] = __fdiv_rn(gate[i], 1.0f + expf(-gate[i]));
    }
    // Packed: conversions of single values take turns with the exponentials.
    word = multiply4<T>(pack4<T>(silu), other);
  }

  // x / d as IEEE division rounds it, for 1 <= d < 2^126: what __fdiv_rn does after its checks of
  // the range, which take a branch and a slow instruction a value.
  static __device__ __forceinline__ float quotient(float x, float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    const float q = __fmul_rn(x, r);
    return __fmaf_rn(r, __fmaf_rn(-d, q, x), q);
  }
};

// T(T(h / rms(h)) * weight) with h = T(x + residual); h is kept when sum_out is given.
template <class T>
struct RmsNormSource {
  static constexpr int kMaxWords = 8;  // Kp up to 16,384: hidden sizes, not the wider MLP ones
  static constexpr int kWideWords = 8;

  template <class Options, int Words>
  static __device__ __forceinline__ void load(const QuantizeParams& p, const Place& place,
                                              int token, uint2 (&words)[Words]) {
    load_row<Options>(p, place, row_start(p.args.x, token, p.args.x_stride), words);
    // The weights do not wait for the sum, where registers allow.
    constexpr bool kEarly = Words < kWideWords;
    const unsigned short* weight_row = row_start(p.args.weight, 0, 0);
    uint2 weights[Words];
    if constexpr (kEarly) load_row<Options>(p, place, weight_row, weights);
    if (p.args.second != nullptr) add_residual<Options>(p, place, token, words);
    const float mean = row_square_sum(place, words) / p.args.channels;
    const float scale = rsqrtf(mean + p.args.epsilon);
    if constexpr (!kEarly) load_row<Options>(p, place, weight_row, weights);
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      float h[4];
      unpack4<T>(words[j], h);
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] *= scale;
      words[j] = multiply4<T>(pack4<T>(h), weights[j]);
    }
  }

 private:
  template <class Options, int Words>
  static __device__ __forceinline__ void add_residual(const QuantizeParams& p, const Place& place,
                                                      int token, uint2 (&words)[Words]) {
    uint2 residuals[Words];
    const unsigned short* row = row_start(p.args.second, token, p.args.second_stride);
    load_row<Options>(p, place, row, residuals);
#pragma unroll
    for (int j = 0; j < Words; ++j) {
      float h[4], residual[4];
      unpack4<T>(words[j], h);
      unpack4<T>(residuals[j], residual);
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] += residual[i];
      words[j] = pack4<T>(h);
    }
    if (p.args.sum_out == nullptr) return;
    const int64_t start = static_cast<int64_t>(token) * p.args.channels;
    store_row<Options>(p, place, p.args.sum_out, start, words);
  }

  template <int Words>
  static __device__ __forceinline__ float row_square_sum(const Place& place,
                                                         const uint2 (&words)[Words]) {
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
    if (place.lane == 0) partial[place.warp] = sum;
    __syncthreads();
    return warp_sum(place.lane < place.warps ? partial[place.lane] : 0.0f);
  }
};

}  // namespace comet
