// SPDX-License-Identifier: Apache-2.0
// The paper-faithful W4Ax kernel: one scale per token and block, one per channel and group.
//
// The integer sum of each block of 128 is scaled in fp32 and added to the result, block after block
// in the order of K, so that K is never split. Three roundings an accumulator and block on the CUDA
// cores make it slower than the integer scales of consumer.cuh.
#pragma once

#include "comet/sm90/epilogue.cuh"
#include "comet/sm90/producer.cuh"
#include "comet/sm90/wgmma.cuh"

namespace comet::sm90 {

// In GemmParams, `scales` and `sums` are [blocks][tokens], `channel_scale` is [blocks][channels].
template <class I>
class BlockConsumer {
 public:
  static_assert(I::kRows == 1 && I::kStageBlocks == 1 && I::kGroupSteps == 4);

  __device__ __forceinline__ BlockConsumer(const GemmParams& p, uint32_t shared)
      : p_(p),
        shared_(shared),
        warpgroup_(__shfl_sync(0xffffffff, threadIdx.x / 128, 0)),
        lane_(TileLane::of(threadIdx.x % 128)) {}

  __device__ __forceinline__ void run() {
    wait_dependencies();
    const TilePlace place = tile_place(p_, blockIdx.x);
    const unsigned warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    token_ = place.token_tile * I::kTokens + lane % 4 * 2;
    channel_ =
        (place.row_tile * I::kTileRows + warpgroup_) * kTileChannels + warp * 16 + lane / 4 * 2;
    for (int block = 0; block < p_.blocks; ++block) {
      multiply();
      accumulate(block);
    }
    store();
  }

 private:
  __device__ __forceinline__ void multiply() {
    barrier_wait(shared_ + I::kFull + ring_.stage * 8, ring_.phase);
    const uint32_t tile =
        shared_ + I::kWeights + ring_.stage * I::kStageWeightBytes + warpgroup_ * kTileBytes;
    const uint64_t operand = operand_descriptor(
        shared_ + I::kOperands + __shfl_sync(0xffffffff, ring_.stage, 0) * I::kStageOperandBytes);
    const TileScale scale = TileScale::of(load_shared(tile + lane_.scales));
    uint32_t a[4][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 words = load_half(tile, lane_, half);
      unpack_step(a[half * 2], words.x, words.y, scale);
      unpack_step(a[half * 2 + 1], words.z, words.w, scale);
    }
#pragma unroll
    for (int i = 0; i < I::kSums; ++i) sums_[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<I::kTokens>(sums_, a[step], operand + step * 2);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums_);
    release_stage<I>(shared_, ring_.stage);
    ring_.template advance<I::kStages>();
  }

  // result += sum * token scale * channel scale, rounded after each step as the reference does.
  __device__ __forceinline__ void accumulate(int block) {
    const float* channel_scale = p_.channel_scale + static_cast<size_t>(block) * p_.channels;
    const bool inside = channel_ < p_.channels;
    const float scale0 = inside ? __ldg(channel_scale + channel_) : 0.0f;
    const float scale1 = inside ? __ldg(channel_scale + channel_ + 1) : 0.0f;
    const size_t row = static_cast<size_t>(block) * p_.tokens;
#pragma unroll
    for (int i = 0; i < I::kSums; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int token = min(token_ + i * 2 + j, p_.tokens - 1);
        const float token_scale = __ldg(p_.scales + row + token);
        const int offset = kOperandOffset * __ldg(p_.sums + row + token);
        add_term(i + j, offset, token_scale, scale0);
        add_term(i + j + 2, offset, token_scale, scale1);
      }
    }
  }

  __device__ __forceinline__ void add_term(int i, int offset, float token_scale,
                                           float channel_scale) {
    const float term = __fmul_rn(__int2float_rn(sums_[i] - offset), token_scale);
    result_[i] = __fadd_rn(result_[i], __fmul_rn(term, channel_scale));
  }

  __device__ __forceinline__ void store() const {
    if (channel_ >= p_.channels) return;
    const float bias0 = p_.bias != nullptr ? p_.bias[channel_] : 0.0f;
    const float bias1 = p_.bias != nullptr ? p_.bias[channel_ + 1] : 0.0f;
    uint16_t* out = static_cast<uint16_t*>(p_.out) + channel_;
#pragma unroll
    for (int i = 0; i < I::kSums; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int token = token_ + i * 2 + j;
        const uint32_t packed = pack_output(__fadd_rn(result_[i + j], bias0),
                                            __fadd_rn(result_[i + j + 2], bias1), p_.fp16);
        if (token < p_.tokens) {
          *reinterpret_cast<uint32_t*>(out + static_cast<int64_t>(token) * p_.channels) = packed;
        }
      }
    }
  }

  const GemmParams& p_;
  const uint32_t shared_;
  const int warpgroup_;
  const TileLane lane_;
  Ring ring_;
  int token_ = 0, channel_ = 0;
  int sums_[I::kSums];
  float result_[I::kSums] = {};
};

template <class I>
__global__ void __launch_bounds__(I::kThreads, I::kResidency)
    w4ax_block_scaled_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) init_ring<I>(shared);
  __syncthreads();
  if (threadIdx.x >= I::kConsumers) {
    if (threadIdx.x % 32 == 0) {
      Producer<I>(p, shared).run();
      launch_dependents();
    }
  } else {
    BlockConsumer<I>(p, shared).run();
  }
}

}  // namespace comet::sm90
