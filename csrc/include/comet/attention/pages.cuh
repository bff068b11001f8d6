// SPDX-License-Identifier: Apache-2.0
// The pages of one warp, on their way from global to shared memory: a ring of stages, filled in the
// order in which the warp takes them. Nothing is shared between warps.
//
// An unfinished page takes several stages: its keys, which are rows of the tail, kTailRows at a
// time, and then the page with its values.
#pragma once

#include "comet/attention/params.cuh"

namespace comet::kv4 {

template <class I>
class Pages {
  using P = typename I::P;

 public:
  // The warp takes pages first, first + step, .. below end of the row.
  __device__ __forceinline__ Pages(const DecodeParams& p, const Item& item, uint8_t* stages,
                                   uint64_t* barriers, int first, int step, int end, int lane)
      : p_(p),
        item_(item),
        stages_(stages),
        barriers_(barriers),
        next_(first),
        step_(step),
        end_(end),
        lane_(lane) {
    if (lane == 0) {
#pragma unroll 1
      for (int stage = 0; stage < p.stages; ++stage) init_barrier(barriers + stage);
      fence_copies();
    }
    __syncwarp();
    look_up();
  }

  // Starts the first copies.
  __device__ __forceinline__ void start() {
#pragma unroll 1
    for (int stage = 0; stage < p_.stages; ++stage) fill(stage);
  }

  // Waits for the oldest stage. It stays until `release`.
  __device__ __forceinline__ uint8_t* wait() {
    wait_copies(barriers_ + stage_, parity_);
    return stages_ + stage_ * P::kBytes;
  }

  // Gives up the oldest stage, which no lane reads any more, for the next one to come.
  __device__ __forceinline__ void release() {
    fill(stage_);
    if (++stage_ == p_.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  // Where page `next_` is: read one page ahead, so that the copy need not wait for it.
  __device__ __forceinline__ void look_up() {
    if (next_ >= end_) return;
    item_.advance(p_.batch, next_);
    id_ = p_.block_tables[item_.sequence * p_.table_stride + item_.page(next_)];
  }

  __device__ __forceinline__ void fill(int stage) {
    if (next_ >= end_) return;
    uint8_t* to = stages_ + stage * P::kBytes;
    int skipped = 0;
    if (item_.is_tail(item_.page(next_))) {
      const int rows = item_.length % kPage - rows_;
      if (rows > 0) {
        const int64_t slot = p_.slots[item_.sequence];
        const int64_t place = slot * p_.batch.kv_heads + item_.head;
        const uint8_t* from = p_.tail + place * I::kTailBytes + rows_ * I::kRowBytes;
        copy_async(to, from, min(rows, I::kTailRows) * I::kRowBytes, barriers_ + stage, lane_);
        rows_ += I::kTailRows;
        return;
      }
      rows_ = 0;
      skipped = P::kValueCodes;
    }
    const int64_t place = static_cast<int64_t>(id_) * p_.batch.kv_heads + item_.head;
    copy_async(to + skipped, p_.cache + place * P::kBytes + skipped, P::kBytes - skipped,
               barriers_ + stage, lane_);
    next_ += step_;
    look_up();
  }

  const DecodeParams& p_;
  Item item_;
  uint8_t* stages_;
  uint64_t* barriers_;
  int next_, step_, end_;
  int lane_;
  int id_ = 0;
  int rows_ = 0;  // of the tail that are on their way or were
  int stage_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace comet::kv4
