// SPDX-License-Identifier: Apache-2.0
// A batch's K and V restored to 16 bit, for a flash kernel. One thread block a page and KV head, of
// D threads; a warp a token.
#pragma once

#include "comet/attention/instructions.cuh"
#include "comet/attention/page.cuh"

namespace comet::kv4 {

struct UnpackParams {
  const uint8_t* cache;
  const uint8_t* tail;
  const int* block_tables;
  const int* seq_lens;
  const int* slots;
  const int* starts;
  uint8_t* key;
  uint8_t* value;
  int64_t table_stride;
  int kv_heads;
  int tokens;  // rows of key and value
};

template <class T, int kDim>
class Unpacker {
  using P = Page<kDim>;
  static constexpr int kWarps = kDim / 32;
  static constexpr int kLaneChannels = kDim / 32;

 public:
  __device__ __forceinline__ explicit Unpacker(const UnpackParams& p) : p_(p) {}

  __device__ __forceinline__ void run(int number, int head, int sequence) {
    const int length = p_.seq_lens[sequence];
    const int tokens = min(kPage, length - number * kPage);
    if (tokens <= 0) return;
    const int64_t id = p_.block_tables[sequence * p_.table_stride + number];
    const uint8_t* page = p_.cache + (id * p_.kv_heads + head) * P::kBytes;
    const int64_t slot = p_.slots[sequence];
    const uint8_t* tail = p_.tail + (slot * p_.kv_heads + head) * kPage * kDim * 2;
    const int channel = threadIdx.x % 32 * kLaneChannels;
    for (int token = threadIdx.x / 32; token < tokens; token += kWarps) {
      const int row = p_.starts[sequence] + number * kPage + token;
      if (row >= p_.tokens) return;
      const int64_t to = (static_cast<int64_t>(row) * p_.kv_heads + head) * kDim + channel;
#pragma unroll
      for (int i = 0; i < kLaneChannels; i += 2) {
        const int c = channel + i;
        *reinterpret_cast<uint32_t*>(p_.value + (to + i) * 2) = value(page, token, c);
        *reinterpret_cast<uint32_t*>(p_.key + (to + i) * 2) =
            tokens == kPage ? key(page, token, c)
                            : *reinterpret_cast<const uint32_t*>(tail + (token * kDim + c) * 2);
      }
    }
  }

 private:
  static __device__ __forceinline__ float code(const uint8_t* page, CodePlace place) {
    return static_cast<float>(page[place.byte] >> 4 * place.nibble & 0xf);
  }

  static __device__ __forceinline__ float2 halves(const uint8_t* from) {
    return to_floats<Fp16>(*reinterpret_cast<const uint32_t*>(from));
  }

  // Channels `channel` and + 1 of a token.
  static __device__ __forceinline__ uint32_t key(const uint8_t* page, int token, int channel) {
    const float2 scale = halves(page + P::kKeyScale + channel * 2);
    const float2 zero = halves(page + P::kKeyZero + channel * 2);
    return to_pair<T>(fmaf(code(page, P::key_code(token, channel)), scale.x, zero.x),
                      fmaf(code(page, P::key_code(token, channel + 1)), scale.y, zero.y));
  }

  static __device__ __forceinline__ uint32_t value(const uint8_t* page, int token, int channel) {
    const int even = token & ~1;
    const float2 scales = halves(page + P::kValueScale + even * 2);
    const float2 zeros = halves(page + P::kValueZero + even * 2);
    const float scale = even == token ? scales.x : scales.y;
    const float zero = even == token ? zeros.x : zeros.y;
    return to_pair<T>(fmaf(code(page, P::value_code(token, channel)), scale, zero),
                      fmaf(code(page, P::value_code(token, channel + 1)), scale, zero));
  }

  const UnpackParams& p_;
};

template <class T, int kDim>
__global__ void __launch_bounds__(kDim) unpack_kernel(const __grid_constant__ UnpackParams p) {
  Unpacker<T, kDim>(p).run(blockIdx.x, blockIdx.y, blockIdx.z);
}

}  // namespace comet::kv4
