// SPDX-License-Identifier: Apache-2.0
// New tokens into a paged KV4 cache. One thread block a page that a sequence touches and KV head,
// of D threads: V goes into the page, a page of K that became full is quantized, and the first of a
// sequence's thread blocks writes the keys of the unfinished page to the tail, after it has read
// the older ones that lie in the same place.
#pragma once

#include "comet/attention/page.cuh"
#include "comet/attention/quantize.cuh"

namespace comet::kv4 {

struct AppendParams {
  uint8_t* cache;
  uint8_t* tail;  // [slots][kv_heads][64][D]
  const int* block_tables;
  const int* seq_lens;
  const int* slots;
  const uint8_t* key;
  const uint8_t* value;
  const int* query_start;  // or null
  int64_t table_stride;
  int64_t key_stride, value_stride;  // elements
  int kv_heads;
};

// Pages that `tokens` new tokens touch at most.
__host__ __device__ constexpr int touched_pages(int tokens) { return (tokens + 62) / kPage + 1; }

template <class T, int kDim>
class Appender {
  using P = Page<kDim>;
  static constexpr int kWarps = kDim / 32;
  static constexpr int kLaneValues = kDim / 32;  // channels of V for each lane
  static constexpr int kQuads = kDim / 4;        // four channels of K for each thread
  static constexpr int kPartTokens = kPage / 4;  // tokens of K for each thread

 public:
  // Codes of V of a whole page, then extrema of K for each quarter of the page.
  static constexpr int kSharedBytes = kPage * kDim / 2 + 4 * kDim * 8;

  __device__ __forceinline__ explicit Appender(const AppendParams& p)
      : p_(p), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32) {}

  __device__ __forceinline__ void run(int touched, int head, int sequence) {
    const int length = p_.seq_lens[sequence];
    if (length == 0) return;
    row_ = p_.query_start != nullptr ? p_.query_start[sequence] : sequence;
    const int count = p_.query_start != nullptr ? p_.query_start[sequence + 1] - row_ : 1;
    start_ = length - count;
    head_ = head;
    const int page = start_ / kPage + touched;
    if (page * kPage >= length || count == 0) return;
    const int64_t id = p_.block_tables[sequence * p_.table_stride + page];
    page_ = p_.cache + (id * p_.kv_heads + head) * P::kBytes;
    const int64_t slot = p_.slots[sequence];
    tail_ = p_.tail + (slot * p_.kv_heads + head) * kPage * kDim * 2;
    const int begin = max(start_, page * kPage), end = min(length, (page + 1) * kPage);
    wait_dependencies();  // what was read so far describes the step
    launch_dependents();
    write_values(begin, end, page * kPage);
    if (end == (page + 1) * kPage) seal(page * kPage);
    if (touched == 0) {
      __syncthreads();
      write_tail(max(start_, length / kPage * kPage), length);
    }
  }

 private:
  __device__ __forceinline__ const uint8_t* key_row(int token) const {
    return p_.key + ((row_ + token - start_) * p_.key_stride + head_ * kDim) * 2;
  }

  // Tokens begin .. end of the page that starts at token `origin`; a warp each.
  __device__ __forceinline__ void write_values(int begin, int end, int origin) {
    const bool whole = end - begin == kPage;
    uint8_t* codes = whole ? dynamic_shared() : page_ + P::kValueCodes;
    // The last warp first: with one token, the first ones copy its key meanwhile.
    for (int token = begin + kWarps - 1 - warp_; token < end; token += kWarps) {
      const int64_t row = (row_ + token - start_) * p_.value_stride + head_ * kDim;
      write_value(p_.value + row * 2, token - origin, codes);
    }
    if (!whole) return;
    __syncthreads();
    for (int at = threadIdx.x; at < kPage * kDim / 32; at += kDim) {
      reinterpret_cast<uint4*>(page_ + P::kValueCodes)[at] = reinterpret_cast<uint4*>(codes)[at];
    }
  }

  __device__ __forceinline__ void write_value(const uint8_t* value, int token, uint8_t* codes) {
    const int channel = lane_ * kLaneValues;
    float x[kLaneValues];
#pragma unroll
    for (int i = 0; i < kLaneValues; i += 2) {
      const float2 pair =
          to_floats<T>(*reinterpret_cast<const uint32_t*>(value + (channel + i) * 2));
      x[i] = pair.x;
      x[i + 1] = pair.y;
    }
    float low = x[0], high = x[0];
#pragma unroll
    for (int i = 1; i < kLaneValues; ++i) {
      low = fminf(low, x[i]);
      high = fmaxf(high, x[i]);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      low = fminf(low, shuffle_xor(low, lanes));
      high = fmaxf(high, shuffle_xor(high, lanes));
    }
    const Scale shared_scale = Scale::of(low, high);
    Scale scale[kLaneValues];
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) scale[i] = shared_scale;
    uint32_t code[kLaneValues];
    codes_of<kLaneValues>(x, scale, code);
#pragma unroll
    for (int i = 0; i < kLaneValues; i += 2) {
      const int byte = P::value_code(token, channel + i).byte - P::kValueCodes;
      codes[byte] = static_cast<uint8_t>(code[i] | code[i + 1] << 4);
    }
    if (lane_ == 0) {
      store_half(page_ + P::kValueScale + 2 * token, shared_scale.pair & 0xffff);
      store_half(page_ + P::kValueZero + 2 * token, shared_scale.pair >> 16);
    }
  }

  static __device__ __forceinline__ void store_half(uint8_t* to, uint32_t bits) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits);
  }

  // Quantizes the keys of the page that starts at token `origin`: the older ones are in the tail.
  __device__ __forceinline__ void seal(int origin) {
    const int channel = threadIdx.x % kQuads * 4, part = threadIdx.x / kQuads;
    float x[kPartTokens][4];
#pragma unroll
    for (int i = 0; i < kPartTokens; ++i) {
      const int token = part * kPartTokens + i;
      const uint8_t* row =
          origin + token >= start_ ? key_row(origin + token) : tail_ + token * kDim * 2;
      const uint2 four = *reinterpret_cast<const uint2*>(row + channel * 2);
      const float2 first = to_floats<T>(four.x), second = to_floats<T>(four.y);
      x[i][0] = first.x;
      x[i][1] = first.y;
      x[i][2] = second.x;
      x[i][3] = second.y;
    }
    Scale scale[4];
    find_scales(x, channel, part, scale);
    if (part == 0) {
      store_quads(page_ + P::kKeyScale + channel * 2, scale, 0);
      store_quads(page_ + P::kKeyZero + channel * 2, scale, 16);
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t words[kTokenTiles];
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        uint32_t low[4], high[4];
        codes_of<4>(x[4 * tile + b], scale, low);
        codes_of<4>(x[4 * tile + 2 + b], scale, high);
        words[tile] = 0;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          words[tile] |= (low[c] | high[c] << 4) << 8 * (2 * (c % 2) + c / 2);
        }
      }
      const int byte = P::key_code(part * kPartTokens + b, channel).byte;
      *reinterpret_cast<uint4*>(page_ + byte) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  // Scales of four channels over the whole page, of which each part of the threads saw a quarter.
  __device__ __forceinline__ void find_scales(const float (&x)[kPartTokens][4], int channel,
                                              int part, Scale (&scale)[4]) {
    auto* extrema = reinterpret_cast<float2*>(dynamic_shared() + kPage * kDim / 2);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float low = x[0][c], high = x[0][c];
#pragma unroll
      for (int i = 1; i < kPartTokens; ++i) {
        low = fminf(low, x[i][c]);
        high = fmaxf(high, x[i][c]);
      }
      extrema[part * kDim + channel + c] = make_float2(low, high);
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float2 of_page = extrema[channel + c];
#pragma unroll
      for (int other = 1; other < 4; ++other) {
        const float2 e = extrema[other * kDim + channel + c];
        of_page = make_float2(fminf(of_page.x, e.x), fmaxf(of_page.y, e.y));
      }
      scale[c] = Scale::of(of_page.x, of_page.y);
    }
  }

  static __device__ __forceinline__ void store_quads(uint8_t* to, const Scale (&scale)[4],
                                                     int shift) {
    uint32_t half[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) half[c] = scale[c].pair >> shift & 0xffff;
    *reinterpret_cast<uint2*>(to) = make_uint2(half[0] | half[1] << 16, half[2] | half[3] << 16);
  }

  // Keys of tokens begin .. end, which are of one page, to the tail.
  __device__ __forceinline__ void write_tail(int begin, int end) {
    constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
    for (int at = threadIdx.x; at < (end - begin) * kPieces; at += kDim) {
      const int token = begin + at / kPieces, piece = at % kPieces;
      reinterpret_cast<uint4*>(tail_ + token % kPage * kDim * 2)[piece] =
          reinterpret_cast<const uint4*>(key_row(token))[piece];
    }
  }

  const AppendParams& p_;
  const int lane_, warp_;
  int row_, start_, head_;  // first new token: its row, its position
  uint8_t* page_;
  uint8_t* tail_;
};

template <class T, int kDim>
__global__ void __launch_bounds__(kDim) append_kernel(const __grid_constant__ AppendParams p) {
  Appender<T, kDim>(p).run(blockIdx.x, blockIdx.y, blockIdx.z);
  // Also where there was nothing to do: whoever waits for this kernel waits for those before it.
  wait_dependencies();
}

}  // namespace comet::kv4
