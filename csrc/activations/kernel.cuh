// SPDX-License-Identifier: Apache-2.0
// The quantization kernel: one thread block a token, one warp a channel block at a time.
//
// A warp's lane holds four neighbouring channels of each of its blocks in one 8-byte word. The
// permutation goes through shared memory; without one, values never leave the registers. Scales are
// computed once per block: lane j of a warp works on the warp's j-th block.
#pragma once

#include "comet/layout.cuh"
#include "comet/rounding.cuh"
#include "sources.cuh"

namespace comet {

constexpr float kInt4Levels = 7.0f, kUint4Levels = 15.0f, kInt8Levels = 127.0f;
constexpr float kMaxMultiple = 18.0f, kMaxMultipleZeroPoint = 8.0f;

// How far a set of values reaches from zero. Without a zero point both directions count as `above`.
struct Extent {
  float above;
  float below;

  __device__ __forceinline__ float size() const { return above + below; }
};

// What one block is quantized with.
struct BlockScale {
  float scale;
  int multiple;
  int zero;
};

struct TokenScale {
  float largest4;  // largest size among INT4 blocks
  float below4;    // how far the INT4 part reaches below zero; mode token with zero points
  float base;
  float scale8;
};

__device__ __forceinline__ float scale_of(float size, float levels) {
  return size > 0.0f ? __fdiv_rn(size, levels) : 1.0f;
}

// Orthonormal 128-point Walsh-Hadamard transform of a block: butterflies in the order 1, 2, ... 64,
// then one multiplication, as the reference rounds.
__device__ __forceinline__ void hadamard128(float (&v)[4]) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, v[i], step);
      v[i] = lane & step ? other - v[i] : v[i] + other;
    }
  }
  const float norm = 1.0f / sqrtf(128.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], norm);
}

// Put the words of a token in permuted order, zeros where the permutation is -1.
template <int Words>
__device__ __forceinline__ void permute(const QuantizeParams& p, uint2 (&words)[Words]) {
  extern __shared__ unsigned short row[];
  const int padded = (p.args.int4_blocks + p.args.int8_blocks) * kBlock;
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int channel = word_channel(j);
    if (channel < padded) *reinterpret_cast<uint2*>(row + channel) = words[j];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int position = word_channel(j);
    if (position >= padded) continue;
    const int4 from = __ldg(reinterpret_cast<const int4*>(p.args.permutation + position));
    const unsigned v0 = from.x < 0 ? 0 : row[from.x], v1 = from.y < 0 ? 0 : row[from.y];
    const unsigned v2 = from.z < 0 ? 0 : row[from.z], v3 = from.w < 0 ? 0 : row[from.w];
    words[j] = make_uint2(v0 | v1 << 16, v2 | v3 << 16);
  }
}

__device__ __forceinline__ Extent block_extent(const float (&v)[4], bool zero_point) {
  if (zero_point) {
    const float above = fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), 0.0f);
    const float below = fmaxf(-fminf(fminf(v[0], v[1]), fminf(v[2], v[3])), 0.0f);
    return {warp_max_nonnegative(above), warp_max_nonnegative(below)};
  }
  const float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  return {warp_max_nonnegative(largest), 0.0f};
}

// What the blocks of one warp, then of all warps, reach to.
struct TokenExtent {
  float largest4;  // largest size of an INT4 block
  Extent union4;   // all INT4 blocks together
  float largest8;
};

__device__ __forceinline__ TokenExtent over_warps(const TokenExtent& own) {
  __shared__ float4 partial[kMaxWarps];
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) {
    partial[threadIdx.x / kWarp] =
        make_float4(own.largest4, own.union4.above, own.union4.below, own.largest8);
  }
  __syncthreads();
  const float4 mine =
      lane < blockDim.x / kWarp ? partial[lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return {warp_max_nonnegative(mine.x),
          {warp_max_nonnegative(mine.y), warp_max_nonnegative(mine.z)},
          warp_max_nonnegative(mine.w)};
}

__device__ __forceinline__ TokenScale token_scale(const QuantizeParams& p,
                                                  const TokenExtent& extent) {
  const float levels = p.args.zero_point ? kUint4Levels : kInt4Levels;
  const float limit = p.args.zero_point ? kMaxMultipleZeroPoint : kMaxMultiple;
  TokenScale token;
  token.scale8 = scale_of(extent.largest8, kInt8Levels);
  token.below4 = extent.union4.below;
  token.largest4 = p.args.mode == kToken ? extent.union4.size() : extent.largest4;
  token.base = scale_of(token.largest4, levels);
  if (p.args.mode == kTokenBlockMultiple && token.largest4 > 0.0f) {
    token.base = __fdiv_rn(token.base, limit);
  }
  return token;
}

__device__ __forceinline__ BlockScale block_scale(const QuantizeParams& p, bool is_int4,
                                                  Extent extent, const TokenScale& token) {
  const int mode = p.args.mode;
  BlockScale result = {1.0f, 1, 0};
  if (!is_int4) {
    result.scale = mode == kTokenBlock ? scale_of(extent.size(), kInt8Levels) : token.scale8;
    return result;
  }
  if (mode == kTokenBlockMultiple) {
    const float limit = p.args.zero_point ? kMaxMultipleZeroPoint : kMaxMultiple;
    const float largest = token.largest4 > 0.0f ? token.largest4 : 1.0f;
    const float multiple =
        fminf(fmaxf(ceilf(__fdiv_rn(__fmul_rn(limit, extent.size()), largest)), 1.0f), limit);
    result.multiple = static_cast<int>(multiple);
    result.scale = __fmul_rn(token.base, multiple);
  } else if (mode == kTokenBlock) {
    result.scale = scale_of(extent.size(), p.args.zero_point ? kUint4Levels : kInt4Levels);
  } else {
    result.scale = token.base;
  }
  if (p.args.zero_point) {
    const float below = mode == kToken ? token.below4 : extent.below;
    result.zero = min(max(rounded_quotient(below, result.scale), 0), 15);
  }
  return result;
}

__device__ __forceinline__ unsigned pack_bytes(const int (&v)[4]) {
  const unsigned low = __byte_perm(v[0], v[1], 0x0040), high = __byte_perm(v[2], v[3], 0x0040);
  return __byte_perm(low, high, 0x5410);
}

// Codes of a lane's four channels as operand bytes in the wanted layout; returns their sum times r.
__device__ __forceinline__ int store_codes(const QuantizeParams& p, int token, int block,
                                           bool is_int4, const float (&v)[4], Divisor divisor,
                                           int multiple, int zero) {
  int codes[4];
  rounded_quotients(v, divisor, codes);
  int low = -127, high = 127;
  if (is_int4) {
    low = p.args.zero_point ? -zero : -7;
    high = p.args.zero_point ? 15 - zero : 7;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = min(max(codes[i], low), high);
  const int int4_blocks = p.args.int4_blocks, int8_blocks = p.args.int8_blocks;
  const int lane = threadIdx.x % kWarp;
  auto* out = static_cast<uint8_t*>(p.args.operand);
  if (p.args.layout == kSm80) {
    out += static_cast<size_t>(token) * row_bytes_sm80(int4_blocks, int8_blocks);
    if (is_int4) {
      const unsigned nibbles =
          (codes[0] & 15) | (codes[1] & 15) << 4 | (codes[2] & 15) << 8 | (codes[3] & 15) << 12;
      reinterpret_cast<uint16_t*>(out + block * (kBlock / 2))[lane] = nibbles;
    } else {
      out += int4_blocks * (kBlock / 2) + (block - int4_blocks) * kBlock;
      reinterpret_cast<unsigned*>(out)[lane] = pack_bytes(codes);
    }
    return (codes[0] + codes[1] + codes[2] + codes[3]) * multiple;
  }
  if (p.args.layout == kSm90) {
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] *= multiple;
    multiple = 1;
    out += operand_sm90(block, token, lane * 4, padded_tokens(p.args.tokens));
  } else {
    out += (static_cast<size_t>(token) * (int4_blocks + int8_blocks) + block) * kBlock + lane * 4;
  }
  *reinterpret_cast<unsigned*>(out) = pack_bytes(codes);
  return (codes[0] + codes[1] + codes[2] + codes[3]) * multiple;
}

// Sums of the token's INT4 and INT8 operand over all warps.
__device__ __forceinline__ void store_sums(const QuantizeParams& p, int token, int sum4, int sum8) {
  __shared__ int2 partial[kMaxWarps];
  const int lane = threadIdx.x % kWarp;
  sum4 = warp_sum(sum4);
  sum8 = warp_sum(sum8);
  if (lane == 0) partial[threadIdx.x / kWarp] = make_int2(sum4, sum8);
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const int2 mine = lane < blockDim.x / kWarp ? partial[lane] : make_int2(0, 0);
  sum4 = warp_sum(mine.x);
  sum8 = warp_sum(mine.y);
  if (lane == 0) {
    p.args.sums[token] = sum4;
    p.args.sums[p.args.tokens + token] = sum8;
  }
}

// Rows that pad the token count are zeros, so that the whole operand is defined.
__device__ __forceinline__ void store_padding_row(const QuantizeParams& p, int token) {
  auto* out = static_cast<uint8_t*>(p.args.operand);
  const int padded = padded_tokens(p.args.tokens);
  const int blocks = p.args.int4_blocks + p.args.int8_blocks;
  const int lane = threadIdx.x % kWarp;
  for (int block = threadIdx.x / kWarp; block < blocks; block += blockDim.x / kWarp) {
    *reinterpret_cast<unsigned*>(out + operand_sm90(block, token, lane * 4, padded)) = 0;
  }
}

// Words: channel blocks a warp owns. Hadamard keeps rotated values in fp32 beside the words.
template <class T, template <class> class Source, int Words, bool Hadamard>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    quantize_kernel(const __grid_constant__ QuantizeParams p) {
  const int token = blockIdx.x;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const int int4_blocks = p.args.int4_blocks, blocks = int4_blocks + p.args.int8_blocks;
#if __CUDA_ARCH__ >= 900
  // The next kernel may start its prologue now; its own wait sees this kernel's results complete.
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (token >= p.args.tokens) return store_padding_row(p, token);

  uint2 words[Words];
  Source<T>::load(p, token, words);
  if (p.args.permutation != nullptr) permute(p, words);

  float rotated[Hadamard ? Words : 1][4];
  Extent mine = {};  // of the warp's block number `lane`
  TokenExtent seen = {};
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int block = warp + j * warps;
    const bool is_int4 = block < int4_blocks;
    float v[4];
    unpack4<T>(words[j], v);
    if constexpr (Hadamard) {
      if (is_int4) hadamard128(v);
#pragma unroll
      for (int i = 0; i < 4; ++i) rotated[j][i] = v[i];
    }
    const Extent extent = block_extent(v, is_int4 && p.args.zero_point);
    if (lane == j) mine = extent;
    if (block >= blocks) continue;
    if (is_int4) {
      seen.largest4 = fmaxf(seen.largest4, extent.size());
      seen.union4.above = fmaxf(seen.union4.above, extent.above);
      seen.union4.below = fmaxf(seen.union4.below, extent.below);
    } else {
      seen.largest8 = fmaxf(seen.largest8, extent.size());
    }
  }

  TokenScale shared = {};
  if (p.args.mode != kTokenBlock) shared = token_scale(p, over_warps(seen));

  const int own = warp + lane * warps;
  const bool owns = lane < Words && own < blocks;
  const BlockScale scale = block_scale(p, own < int4_blocks, mine, shared);
  const Divisor divisor = Divisor::of(scale.scale);
  if (owns && p.args.mode == kTokenBlock) {
    p.args.scales[static_cast<size_t>(own) * p.args.tokens + token] = scale.scale;
  }
  if (owns && own < int4_blocks && p.args.multiples != nullptr) {
    p.args.multiples[static_cast<size_t>(token) * int4_blocks + own] = scale.multiple;
  }
  if (threadIdx.x == 0 && p.args.mode != kTokenBlock) {
    p.args.scales[token] = shared.base;
    p.args.scales[p.args.tokens + token] = shared.scale8;
  }

  int sum4 = 0, sum8 = 0;
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int block = warp + j * warps;
    if (block >= blocks) break;
    const bool is_int4 = block < int4_blocks;
    float v[4];
    if constexpr (Hadamard) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = rotated[j][i];
    } else {
      unpack4<T>(words[j], v);
    }
    const Divisor by = {__shfl_sync(kAllLanes, divisor.scale, j),
                        __shfl_sync(kAllLanes, divisor.reciprocal, j)};
    const int multiple = __shfl_sync(kAllLanes, scale.multiple, j);
    const int zero = p.args.zero_point ? __shfl_sync(kAllLanes, scale.zero, j) : 0;
    const int sum = store_codes(p, token, block, is_int4, v, by, multiple, zero);
    if (p.args.mode == kTokenBlock) {
      const int total = warp_sum(sum);
      if (lane == 0) p.args.sums[static_cast<size_t>(block) * p.args.tokens + token] = total;
    } else if (is_int4) {
      sum4 += sum;
    } else {
      sum8 += sum;
    }
  }
  if (p.args.mode != kTokenBlock) store_sums(p, token, sum4, sum8);
}

}  // namespace comet
