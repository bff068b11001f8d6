// SPDX-License-Identifier: Apache-2.0
// The quantization kernel: one thread block a token, one warp a channel block at a time.
//
// Values stay in registers as 8-byte words of four channels; only a permutation sends them through
// shared memory. Scales are computed once per block: lane j of a warp works on the warp's j-th
// block. What decides the speed is the number of instructions per word, not memory.
#pragma once

#include "scales.cuh"

namespace comet {

// Orthonormal 128-point Walsh-Hadamard transform of a block: butterflies in the order 1, 2, ... 64,
// then one multiplication, as the reference rounds.
__device__ __forceinline__ void hadamard128(int lane, float (&v)[4]) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
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

constexpr int kRowOffset = 4;  // a zero word before the row is what index -1 reads

// Where the four channels of each word come from. Few words ask for it before the kernel in front
// has ended; more would not have the registers.
template <int Words>
class Permutation {
  static constexpr bool kEarly = Words <= 2;

 public:
  __device__ __forceinline__ Permutation(const QuantizeParams& p, const Place& place)
      : first_(p.args.permutation),
        last_((p.args.int4_blocks + p.args.int8_blocks) * kBlock - 4) {
    if constexpr (kEarly) {
      if (first_ == nullptr) return;
#pragma unroll
      for (int j = 0; j < Words; ++j) early_[j] = read(place.channel(j));
    }
  }

  __device__ __forceinline__ bool given() const { return first_ != nullptr; }
  __device__ __forceinline__ int4 of_word(const Place& place, int j) const {
    if constexpr (kEarly) return early_[j];
    return read(place.channel(j));
  }

 private:
  __device__ __forceinline__ int4 read(int channel) const {
    return __ldg(reinterpret_cast<const int4*>(first_ + min(channel, last_)));
  }

  const int* first_;
  int last_;
  int4 early_[kEarly ? Words : 1];
};

// Put the words of a token in permuted order, zeros where the permutation is -1. A warp's surplus
// words go through it too (the row in shared memory has room for them): fewer branches.
template <int Words>
__device__ __forceinline__ void permute(const Permutation<Words>& permutation, const Place& place,
                                        uint2 (&words)[Words]) {
  extern __shared__ __align__(16) unsigned short shared_row[];
  unsigned short* row = shared_row + kRowOffset;
  if (threadIdx.x == 0) *reinterpret_cast<uint2*>(shared_row) = make_uint2(0, 0);
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    *reinterpret_cast<uint2*>(row + place.channel(j)) = words[j];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int4 from = permutation.of_word(place, j);
    words[j].x = row[from.x] | static_cast<unsigned>(row[from.y]) << 16;
    words[j].y = row[from.z] | static_cast<unsigned>(row[from.w]) << 16;
  }
}

// Where a lane's word of each block goes; next() moves on to the warp's next block.
template <class Options>
class Output {
 public:
  __device__ __forceinline__ Output(const QuantizeParams& p, const Place& place, int token)
      : p_(p) {
    auto* operand = static_cast<uint8_t*>(p.args.operand);
    const int blocks = p.args.int4_blocks + p.args.int8_blocks;
    if (Options::layout(p) == kSm90) {
      const int padded = padded_tokens(p.args.tokens);
      word_ = operand + operand_sm90(place.warp, token, place.lane * 4, padded);
      step_ = static_cast<size_t>(padded) * kBlock * place.warps;
    } else if (Options::layout(p) == kRows) {
      word_ = operand + static_cast<size_t>(token) * blocks * kBlock + place.channel(0);
      step_ = kBlock * place.warps;
    } else {
      const int row_bytes = row_bytes_sm80(p.args.int4_blocks, p.args.int8_blocks);
      word_ = operand + static_cast<size_t>(token) * row_bytes;
      step_ = 0;
    }
  }

  // Writes the codes of one word; returns their sum times `multiple`.
  __device__ __forceinline__ int store(const Place& place, int block, bool is_int4,
                                       const float (&codes)[4], float multiple) const {
    if (Options::layout(p_) == kSm80) {
      store_sm80(place, block, is_int4, pack_bytes(codes, 1.0f));
    } else if (Options::layout(p_) == kRows) {
      *reinterpret_cast<unsigned*>(word_) = pack_bytes(codes, 1.0f);
    } else {
      const unsigned packed = pack_bytes(codes, multiple);
      *reinterpret_cast<unsigned*>(word_) = packed;
      return __dp4a(static_cast<int>(packed), 0x01010101, 0);
    }
    return static_cast<int>((codes[0] + codes[1] + codes[2] + codes[3]) * multiple);
  }

  __device__ __forceinline__ void next() { word_ += step_; }

 private:
  __device__ __forceinline__ void store_sm80(const Place& place, int block, bool is_int4,
                                             unsigned packed) const {
    const int int4_blocks = p_.args.int4_blocks;
    if (is_int4) {
      const unsigned pairs = (packed & 0x000f000f) | (packed & 0x0f000f00) >> 4;
      const unsigned nibbles = (pairs | pairs >> 8) & 0xffff;
      reinterpret_cast<uint16_t*>(word_ + block * (kBlock / 2))[place.lane] = nibbles;
    } else {
      uint8_t* row = word_ + int4_blocks * (kBlock / 2) + (block - int4_blocks) * kBlock;
      reinterpret_cast<unsigned*>(row)[place.lane] = packed;
    }
  }

  const QuantizeParams& p_;
  uint8_t* word_;
  size_t step_;
};

// Sums of the token's INT4 and INT8 operand over all warps.
__device__ __forceinline__ void store_sums(const QuantizeParams& p, const Place& place, int token,
                                           int sum4, int sum8) {
  __shared__ int2 partial[kMaxWarps];
  sum4 = warp_sum(sum4);
  sum8 = warp_sum(sum8);
  if (place.lane == 0) partial[place.warp] = make_int2(sum4, sum8);
  __syncthreads();
  if (place.warp > 0) return;
  const int2 mine = place.lane < place.warps ? partial[place.lane] : make_int2(0, 0);
  sum4 = warp_sum(mine.x);
  sum8 = warp_sum(mine.y);
  if (place.lane == 0) {
    p.args.sums[token] = sum4;
    p.args.sums[p.args.tokens + token] = sum8;
  }
}

// Rows that pad the token count are zeros, so that the whole operand is defined.
__device__ __forceinline__ void store_padding_row(const QuantizeParams& p, const Place& place,
                                                  int token) {
  auto* out = static_cast<uint8_t*>(p.args.operand);
  const int padded = padded_tokens(p.args.tokens);
  const int blocks = p.args.int4_blocks + p.args.int8_blocks;
  for (int block = place.warp; block < blocks; block += place.warps) {
    *reinterpret_cast<unsigned*>(out + operand_sm90(block, token, place.lane * 4, padded)) = 0;
  }
}

// What the scales of a warp's blocks leave behind besides the codes; lane j holds block j.
template <class Options>
__device__ __forceinline__ void store_scales(const QuantizeParams& p, const Place& place, int token,
                                             int own, bool owns, const TokenScale& shared,
                                             const BlockScale& scale) {
  const size_t tokens = p.args.tokens;
  if (Options::mode(p) == kTokenBlock) {
    if (owns) p.args.scales[own * tokens + token] = scale.scale;
  } else if (threadIdx.x == 0) {
    p.args.scales[token] = shared.base;
    p.args.scales[tokens + token] = shared.scale8;
  }
  if (Options::layout(p) != kSm90 && owns && own < p.args.int4_blocks) {
    p.args.multiples[static_cast<size_t>(token) * p.args.int4_blocks + own] =
        static_cast<uint8_t>(scale.multiple);
  }
}

// Words: channel blocks a warp owns.
template <class T, template <class> class Source, int Words, class Options>
__global__ void __launch_bounds__(max_warps<Source<T>>(Words) * kWarp, 1)
    quantize_kernel(const __grid_constant__ QuantizeParams p) {
  const int token = blockIdx.x;
  const Place place = Place::of_thread();
  const int int4_blocks = p.args.int4_blocks, blocks = int4_blocks + p.args.int8_blocks;
  const Permutation<Words> permutation(p, place);
#if __CUDA_ARCH__ >= 900
  // The next kernel may start its prologue now; its own wait sees this kernel's results complete.
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (token >= p.args.tokens) return store_padding_row(p, place, token);

  uint2 words[Words];
  Source<T>::template load<Options>(p, place, token, words);
  if (permutation.given()) permute(permutation, place, words);

  // Rotated values are kept where registers allow, else computed again.
  constexpr bool kKeep = Options::kHadamard && Words <= 4;
  float rotated[kKeep ? Words : 1][4];
  Extent mine = {};  // of the warp's block number `lane`
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const bool is_int4 = place.block(j) < int4_blocks;
    Extent extent;
    if (!Options::kHadamard && !(is_int4 && Options::zero_point(p))) {
      extent = {warp_largest_magnitude<T>(words[j]), 0.0f};
    } else {
      float v[4];
      unpack4<T>(words[j], v);
      if (Options::kHadamard && is_int4) hadamard128(place.lane, v);
      if constexpr (kKeep) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rotated[j][i] = v[i];
      }
      extent = block_extent(v, is_int4 && Options::zero_point(p));
    }
    if (place.lane == j) mine = extent;
  }
  const int own = place.block(place.lane);
  const bool owns = place.lane < Words && own < blocks, own_is_int4 = own < int4_blocks;

  TokenScale shared = {};
  if (Options::mode(p) != kTokenBlock) {
    shared = token_scale<Options>(p, over_blocks<Options>(p, place, owns, own_is_int4, mine));
  }
  const BlockScale scale = block_scale<Options>(p, own_is_int4, mine, shared);
  const Divisor divisor = Divisor::of(scale.scale);
  store_scales<Options>(p, place, token, own, owns, shared, scale);

  Output<Options> output(p, place, token);
  int sum4 = 0, sum8 = 0;
#pragma unroll
  for (int j = 0; j < Words; ++j) {
    const int block = place.block(j);
    if (block >= blocks) break;
    const bool is_int4 = block < int4_blocks;
    float v[4], codes[4];
    if constexpr (kKeep) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = rotated[j][i];
    } else {
      unpack4<T>(words[j], v);
      if (Options::kHadamard && is_int4) hadamard128(place.lane, v);
    }
    const Divisor by = {__shfl_sync(kAllLanes, divisor.scale, j),
                        __shfl_sync(kAllLanes, divisor.reciprocal, j)};
    const float multiple = __shfl_sync(kAllLanes, scale.multiple, j);
    const bool shifted = is_int4 && Options::zero_point(p);
    float low = is_int4 ? -kInt4Levels : -kInt8Levels, high = -low;
    if (shifted) {
      low = -__shfl_sync(kAllLanes, scale.zero, j);
      high = kUint4Levels + low;
    }
    rounded_quotients(v, by, low, high, shifted, codes);
    const int sum = output.store(place, block, is_int4, codes, multiple);
    output.next();
    if (Options::mode(p) == kTokenBlock) {
      const int total = warp_sum(sum);
      if (place.lane == 0) {
        p.args.sums[static_cast<size_t>(block) * p.args.tokens + token] = total;
      }
    } else {
      sum4 += is_int4 ? sum : 0;
      sum8 += is_int4 ? 0 : sum;
    }
  }
  if (Options::mode(p) != kTokenBlock) store_sums(p, place, token, sum4, sum8);
}

}  // namespace comet
