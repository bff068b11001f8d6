// SPDX-License-Identifier: Apache-2.0
// From exact integer sums to outputs: y = channel_scale * (base * I4 + scale8 * I8) + bias.
//
// Every rounding step is spelled out, in the order of the reference, so that a result is the same
// bit for bit however K was split.
#pragma once

#include "comet/sm90/instance.cuh"
#include "comet/sm90/ptx.cuh"

namespace comet::sm90 {

constexpr int kOperandOffset = 128;  // the u8 weight operand is q + 128

// What one token contributes; lies in shared memory as one 16-byte word. A layer with one class of
// blocks has that class in the first place.
struct TokenTerms {
  float scale4, scale8;
  int sum4, sum8;  // of the activations
};

template <bool kTwoClasses>
__device__ __forceinline__ float scaled(int sum4, int sum8, const TokenTerms& t) {
  const float first = __fmul_rn(t.scale4, __int2float_rn(sum4 - kOperandOffset * t.sum4));
  if constexpr (!kTwoClasses) return first;
  return __fadd_rn(first, __fmul_rn(t.scale8, __int2float_rn(sum8 - kOperandOffset * t.sum8)));
}

__device__ __forceinline__ uint32_t pack_output(float low, float high, bool fp16) {
  uint32_t packed;
  if (fp16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

template <class I>
class Epilogue {
 public:
  __device__ __forceinline__ Epilogue(const GemmParams& p, uint32_t shared)
      : p_(p), shared_(shared) {}

  // Starts to bring the terms of the tile's tokens and of this warpgroup's channels to shared
  // memory. Nobody waits for them until the main loop is over.
  __device__ __forceinline__ void fetch_terms(const TilePlace& place, int warpgroup) {
    const int thread = reread_thread() % 128;
    const int token0 = place.token_tile * I::kTokens;
    const int channel0 = place.row_tile * I::kTileRows * kTileChannels;
    // Kept in shared memory: registers are scarce during the main loop.
    if (thread == 0) {
      store_shared4(shared_ + I::kPlace + warpgroup * 16, token0, channel0, 0, 0);
    }
    const uint32_t tokens = shared_ + I::kTokenTerms + warpgroup * I::kTokens * 16;
    const int second = p_.tokens;                        // the INT8 part comes second
    const int first = p_.int4_blocks == 0 ? second : 0;  // unless it is the only one
    for (int i = thread; i < I::kTokens; i += 128) {
      const bool inside = token0 + i < p_.tokens;
      const int token = inside ? token0 + i : 0;
      async_copy4(tokens + i * 16, p_.scales + first + token, inside);
      async_copy4(tokens + i * 16 + 4, p_.scales + second + token, inside);
      async_copy4(tokens + i * 16 + 8, p_.sums + first + token, inside);
      async_copy4(tokens + i * 16 + 12, p_.sums + second + token, inside);
    }
    constexpr int kOwn = I::kRows * kTileChannels;
    for (int i = thread; i < kOwn; i += 128) {
      const int own = warpgroup * kOwn + i;
      const bool inside = channel0 + own < p_.channels;
      const int channel = inside ? channel0 + own : 0;
      const bool biased = p_.bias != nullptr;
      const uint32_t terms = shared_ + I::kChannelTerms + own * 8;
      async_copy4(terms, p_.channel_scale + channel, inside);
      async_copy4(terms + 4, biased ? p_.bias + channel : p_.channel_scale, inside && biased);
    }
  }

  // Finishes one chunk of a consumer thread, wherever its sums come from.
  template <bool kTwoClasses>
  __device__ __forceinline__ void finish(unsigned consumer, int chunk, const int4& sum4,
                                         const int4& sum8) const {
    const int row = chunk / (I::kSums / 4), column = chunk % (I::kSums / 4);
    Place place = place_of(consumer, row);
    place.skip(p_, column);
    finish_chunk<kTwoClasses>(place, sum4, sum8);
  }

  // Finishes the chunks first, first + kStep, .. of a consumer thread of an instance with one row.
  template <bool kTwoClasses, int kStep, class Sums4, class Sums8>
  __device__ __forceinline__ void finish_every(unsigned consumer, int first, Sums4&& sums4,
                                               Sums8&& sums8) const {
    static_assert(I::kRows == 1);
    Place place = place_of(consumer, 0);
    place.skip(p_, first);
#pragma unroll
    for (int i = 0; i < I::kChunks; i += kStep) {
      if (I::kChunks % kStep != 0 && first + i >= I::kChunks) break;
      finish_chunk<kTwoClasses>(place, sums4(first + i), sums8(first + i));
      place.skip(p_, kStep);
    }
  }

  // Finishes all chunks of the calling thread; `sums4` and `sums8` give a chunk's sums.
  template <bool kTwoClasses, class Sums4, class Sums8>
  __device__ __forceinline__ void finish_all(Sums4&& sums4, Sums8&& sums8) const {
    constexpr int kColumns = I::kSums / 4;
#pragma unroll
    for (int row = 0; row < I::kRows; ++row) {
      Place place = place_of(reread_thread(), row);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const int chunk = row * kColumns + column;
        finish_chunk<kTwoClasses>(place, sums4(chunk), sums8(chunk));
        place.skip(p_, 1);
      }
    }
  }

 private:
  // Two neighbouring tokens of two neighbouring channels.
  struct Place {
    uint32_t token_terms;
    float scale0, bias0, scale1, bias1;
    int tokens_left;  // of the tile row, from this token on; none where the channel is padding
    uint16_t* out;

    __device__ __forceinline__ void skip(const GemmParams& p, int columns) {
      token_terms += columns * 8 * 16;
      tokens_left -= columns * 8;
      out += static_cast<int64_t>(columns * 8) * p.channels;
    }
  };

  __device__ __forceinline__ Place place_of(unsigned consumer, int row) const {
    const int warpgroup = consumer / 128, warp = consumer / 32 % 4, lane = consumer % 32;
    const int token = lane % 4 * 2;
    const int own = (warpgroup * I::kRows + row) * kTileChannels + warp * 16 + lane / 4 * 2;
    Place place;
    place.token_terms = shared_ + I::kTokenTerms + (warpgroup * I::kTokens + token) * 16;
    const uint4 c = load_shared4(shared_ + I::kChannelTerms + own * 8);
    place.scale0 = __uint_as_float(c.x);
    place.bias0 = __uint_as_float(c.y);
    place.scale1 = __uint_as_float(c.z);
    place.bias1 = __uint_as_float(c.w);
    const uint4 tile = reload_shared4(shared_ + I::kPlace + warpgroup * 16);
    const int first_token = tile.x + token, channel = tile.y + own;
    place.tokens_left = channel < p_.channels ? p_.tokens - first_token : 0;
    place.out =
        static_cast<uint16_t*>(p_.out) + static_cast<int64_t>(first_token) * p_.channels + channel;
    return place;
  }

  template <bool kTwoClasses>
  __device__ __forceinline__ void finish_chunk(const Place& place, const int4& sum4,
                                               const int4& sum8) const {
    const TokenTerms t0 = terms_at(place.token_terms), t1 = terms_at(place.token_terms + 16);
    const float y00 = affine(scaled<kTwoClasses>(sum4.x, sum8.x, t0), place.scale0, place.bias0);
    const float y10 = affine(scaled<kTwoClasses>(sum4.y, sum8.y, t1), place.scale0, place.bias0);
    const float y01 = affine(scaled<kTwoClasses>(sum4.z, sum8.z, t0), place.scale1, place.bias1);
    const float y11 = affine(scaled<kTwoClasses>(sum4.w, sum8.w, t1), place.scale1, place.bias1);
    // Branches around the arithmetic would serialise it; only the stores are predicated.
    const uint32_t first = pack_output(y00, y01, p_.fp16), second = pack_output(y10, y11, p_.fp16);
    if (place.tokens_left > 0) *reinterpret_cast<uint32_t*>(place.out) = first;
    if (place.tokens_left > 1) *reinterpret_cast<uint32_t*>(place.out + p_.channels) = second;
  }

  __device__ __forceinline__ static TokenTerms terms_at(uint32_t address) {
    const uint4 v = reload_shared4(address);
    return {__uint_as_float(v.x), __uint_as_float(v.y), static_cast<int>(v.z),
            static_cast<int>(v.w)};
  }

  __device__ __forceinline__ static float affine(float x, float scale, float bias) {
    return __fadd_rn(__fmul_rn(x, scale), bias);
  }

  const GemmParams& p_;
  const uint32_t shared_;
};

}  // namespace comet::sm90
