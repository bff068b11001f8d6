// SPDX-License-Identifier: Apache-2.0
// New tokens into a paged KV4 cache, by thread blocks of D threads: V goes into the page, a page of
// K that became full is quantized, and the keys of an unfinished page go to the tail.
//
// Chunks: one thread block a page that a sequence touches and KV head. The first of a sequence's
// writes the tail, after it has read the older keys that lie in the same place. One new token a
// sequence: one warp a KV head, so that a batch is one wave of thread blocks.
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
  bool one_token;  // at most, of each sequence
};

// Pages that `tokens` new tokens touch at most.
__host__ __device__ constexpr int touched_pages(int tokens) { return (tokens + 62) / kPage + 1; }

// Thread blocks: pages a sequence touches at most, KV heads or groups of them, sequences.
template <int kDim>
dim3 append_grid(const AppendParams& p, int max_new_tokens, int sequences) {
  const int heads = p.one_token ? kDim / 32 : 1;
  return dim3(touched_pages(max_new_tokens), (p.kv_heads + heads - 1) / heads, sequences);
}

template <class T, int kDim>
class Appender {
  using P = Page<kDim>;
  static constexpr int kWarps = kDim / 32;
  static constexpr int kLaneValues = kDim / 32;  // channels of V for each lane
  static constexpr int kQuads = kDim / 4;        // four channels of K for each thread
  static constexpr int kPartTokens = kPage / 4;  // tokens of K for each thread
  static constexpr int kPieces = kDim / 8;       // of 16 bytes, a row of the tail

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
    const int page = start_ / kPage + touched;
    if (page * kPage >= length || count == 0) return;
    id_ = p_.block_tables[sequence * p_.table_stride + page];
    slot_ = p_.slots[sequence];
    const int origin = page * kPage;
    const int begin = max(start_, origin), end = min(length, origin + kPage);
    int first = head, last = head + 1;  // KV heads of this thread block
    if (p_.one_token) {
      first = head * kWarps;
      last = min(first + kWarps, p_.kv_heads);
    }
    wait_dependencies();  // what was read so far describes the step
    launch_dependents();
    if (p_.one_token) {
      if (first + warp_ < last) write_token(first + warp_, origin, length);
    } else {
      select(head);
      write_values(begin, end, origin);
    }
    if (end == origin + kPage) {
#pragma unroll 1
      for (int other = first; other < last; ++other) {
        select(other);
        seal(origin);
        __syncthreads();  // before the next one's extrema, or newer keys in the tail
      }
    }
    if (touched == 0 && !p_.one_token) write_tail(max(start_, length / kPage * kPage), length);
  }

 private:
  // The only new token, in the page that starts at token `origin`; by one warp.
  __device__ __forceinline__ void write_token(int head, int origin, int length) {
    select(head);
    write_value(value_row(start_), start_ - origin, page_ + P::kValueCodes);
    if (length % kPage != 0 && lane_ < kPieces) copy_key(start_, lane_);
  }

  // From now on, of the sequence's page and tail, the part of that KV head.
  __device__ __forceinline__ void select(int head) {
    head_ = head;
    page_ = p_.cache + (id_ * p_.kv_heads + head) * P::kBytes;
    tail_ = p_.tail + (slot_ * p_.kv_heads + head) * kPage * kDim * 2;
  }

  __device__ __forceinline__ const uint8_t* key_row(int token) const {
    return p_.key + ((row_ + token - start_) * p_.key_stride + head_ * kDim) * 2;
  }
  __device__ __forceinline__ const uint8_t* value_row(int token) const {
    return p_.value + ((row_ + token - start_) * p_.value_stride + head_ * kDim) * 2;
  }

  // Tokens begin .. end of the page that starts at token `origin`; a warp each.
  __device__ __forceinline__ void write_values(int begin, int end, int origin) {
    const bool whole = end - begin == kPage;
    uint8_t* codes = whole ? dynamic_shared() : page_ + P::kValueCodes;
    for (int token = begin + warp_; token < end; token += kWarps) {
      write_value(value_row(token), token - origin, codes);
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
    uint2 x[kPartTokens];  // packed: as floats they would take twice the registers
#pragma unroll
    for (int i = 0; i < kPartTokens; ++i) {
      const int token = part * kPartTokens + i;
      const uint8_t* row =
          origin + token >= start_ ? key_row(origin + token) : tail_ + token * kDim * 2;
      x[i] = *reinterpret_cast<const uint2*>(row + channel * 2);
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
        float values[4];
        unpack4(x[4 * tile + b], values);
        codes_of<4>(values, scale, low);
        unpack4(x[4 * tile + 2 + b], values);
        codes_of<4>(values, scale, high);
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

  static __device__ __forceinline__ void unpack4(uint2 four, float (&values)[4]) {
    const float2 first = to_floats<T>(four.x), second = to_floats<T>(four.y);
    values[0] = first.x;
    values[1] = first.y;
    values[2] = second.x;
    values[3] = second.y;
  }

  // Scales of four channels over the whole page, of which each part of the threads saw a quarter.
  __device__ __forceinline__ void find_scales(const uint2 (&x)[kPartTokens], int channel, int part,
                                              Scale (&scale)[4]) {
    auto* extrema = reinterpret_cast<float2*>(dynamic_shared() + kPage * kDim / 2);
    float low[4], high[4];
    unpack4(x[0], low);
    unpack4(x[0], high);
#pragma unroll
    for (int i = 1; i < kPartTokens; ++i) {
      float values[4];
      unpack4(x[i], values);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        low[c] = fminf(low[c], values[c]);
        high[c] = fmaxf(high[c], values[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      extrema[part * kDim + channel + c] = make_float2(low[c], high[c]);
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
    for (int at = threadIdx.x; at < (end - begin) * kPieces; at += kDim) {
      copy_key(begin + at / kPieces, at % kPieces);
    }
  }

  __device__ __forceinline__ void copy_key(int token, int piece) {
    reinterpret_cast<uint4*>(tail_ + token % kPage * kDim * 2)[piece] =
        reinterpret_cast<const uint4*>(key_row(token))[piece];
  }

  const AppendParams& p_;
  const int lane_, warp_;
  int64_t id_, slot_;       // of the sequence: its page, its tail
  int row_, start_, head_;  // first new token: its row, its position
  uint8_t* page_;
  uint8_t* tail_;
};

template <class T, int kDim>
__global__ void __launch_bounds__(kDim, 512 / kDim) append_kernel(const __grid_constant__ AppendParams p) {
  Appender<T, kDim>(p).run(blockIdx.x, blockIdx.y, blockIdx.z);
  // Also where there was nothing to do: whoever waits for this kernel waits for those before it.
  wait_dependencies();
}

}  // namespace comet::kv4
