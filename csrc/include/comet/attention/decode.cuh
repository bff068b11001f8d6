// SPDX-License-Identifier: Apache-2.0
// Decode attention over a paged KV4 cache: every thread block takes an equal run of the batch's
// pages (schedule.cuh), its warps the pages of the run in turn. Where a sequence and KV head ends,
// the warps' sums are merged; where its pages are spread over thread blocks, the last of these to
// deliver its part merges them all. Nobody waits for another thread block.
#pragma once

#include "comet/attention/merge.cuh"
#include "comet/attention/pages.cuh"

namespace comet::kv4 {

template <class I>
class Decoder {
  using P = typename I::P;
  static constexpr int kPartsAtOnce = 4;

 public:
  __device__ __forceinline__ explicit Decoder(const DecodeParams& p)
      : p_(p), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32), warps_(blockDim.x / 32) {
    const int stages = warps_ * p.stages;
    stages_ = dynamic_shared();
    barriers_ = reinterpret_cast<uint64_t*>(stages_ + stages * P::kBytes);
    parts_ = reinterpret_cast<int*>(barriers_ + stages);
  }

  __device__ __forceinline__ void run() {
    const int total = total_pages(p_.batch, lane_);
    runs_ = Runs::of(total, gridDim.x);
    begin_ = runs_.begin(blockIdx.x);
    end_ = runs_.begin(blockIdx.x + 1);
    if (begin_ < end_) {
      Item item = Item::find(p_.batch, begin_, lane_);
      Pages<I> pages(p_, item, stages_ + warp_ * p_.stages * P::kBytes,
                     barriers_ + warp_ * p_.stages, begin_ + warp_, warps_, end_, lane_);
      wait_dependencies();  // what was read so far describes the step
      launch_dependents();
      pages.start();
      for (int position = begin_; position < end_;) {
        item.advance(p_.batch, position);
        const int stop = min(item.end(), end_);
        attend(item, pages, position, stop);
        position = stop;
      }
    }
    wait_dependencies();  // also where there was nothing to do
    clear_empty();
  }

 private:
  // This thread block's pages `position` .. `stop` of an item.
  __device__ __forceinline__ void attend(const Item& item, Pages<I>& pages, int position,
                                         int stop) {
    // The first of them that is this warp's turn.
    const int turn = (position - begin_) % warps_;
    int mine = position + (warp_ >= turn ? warp_ - turn : warp_ - turn + warps_);
    const bool taken = mine < stop;
    if (taken) {
      const uint8_t* rows = query_rows(item);
      const Query<I> query(rows, p_.group, p_.score_factor, lane_);
      State<I> state;
      uint8_t* page;
      while (true) {
        const int number = item.page(mine);
        Scores<I> scores;
        if (item.is_tail(number)) {
          const int tokens = item.length % kPage;
          score_tail_rows(item, rows, tokens, pages, scores);
          page = pages.wait();
          state.add(scores, page, tokens, lane_);
          break;  // it is the item's last
        }
        page = pages.wait();
        if constexpr (kStreamOnly) {
          state.sums[0][0] += page[lane_];
        } else {
          score_codes<I>(page, query, lane_, scores);
          hide_before_window(item, number, scores);
          state.add(scores, page, kPage, lane_);
        }
        mine += warps_;
        if (mine >= stop) break;
        __syncwarp();
        pages.release();
      }
      // The page's place in shared memory takes this warp's part.
      __syncwarp();
      store_part<I>(state, reinterpret_cast<float*>(page), p_.group, lane_);
      if (lane_ == 0) parts_[warp_] = static_cast<int>(page - stages_);
      fence_copies();
    } else if (lane_ == 0) {
      parts_[warp_] = -1;
    }
    __syncthreads();
    merge_warps(item, position == item.start && stop == item.end());
    __syncthreads();
    if (taken) pages.release();
  }

  // The stages that hold keys of an unfinished page.
  __device__ __forceinline__ void score_tail_rows(const Item& item, const uint8_t* rows, int tokens,
                                                  Pages<I>& pages, Scores<I>& scores) {
    set_factor<I>(scores, p_.score_factor);
#pragma unroll 1
    for (int first = 0; first < tokens; first += I::kTailRows) {
      const uint8_t* keys = pages.wait();
      if constexpr (!kStreamOnly) {
        const int count = min(tokens - first, I::kTailRows);
        score_tail<I>(keys, first, count, rows, p_.group, lane_, scores);
      }
      __syncwarp();
      pages.release();
    }
    const int hidden = p_.batch.window > 0 ? hidden_tokens(item, item.length / kPage) : 0;
    hide<I>(scores, hidden, tokens, lane_);
  }

  // Tokens at the start of page `number` that the window leaves out.
  __device__ __forceinline__ int hidden_tokens(const Item& item, int number) const {
    return item.length - p_.batch.window - number * kPage;
  }

  __device__ __forceinline__ void hide_before_window(const Item& item, int number,
                                                     Scores<I>& scores) {
    if (p_.batch.window == 0) return;
    const int hidden = hidden_tokens(item, number);
    if (hidden > 0) hide<I>(scores, hidden, kPage, lane_);
  }

  // Merges the parts of this thread block's warps: the result of a `whole` item, else a part.
  __device__ __forceinline__ void merge_warps(const Item& item, bool whole) {
    const int floats = part_floats<I>(p_.group), quads = p_.group * I::kDim / 4;
    float* part = part_of(p_, item, runs_, blockIdx.x, floats);
    for (int at = threadIdx.x; at < quads; at += blockDim.x) {
      Sum sum;
      for (int warp = 0; warp < warps_; warp += kPartsAtOnce) {
        Sum others[kPartsAtOnce];
#pragma unroll
        for (int i = 0; i < kPartsAtOnce; ++i) {
          const int place = warp + i < warps_ ? parts_[warp + i] : -1;
          if (place < 0) continue;
          const auto* from = reinterpret_cast<const float*>(stages_ + place);
          const auto* of_head = reinterpret_cast<const float2*>(from + p_.group * I::kDim);
          const float2 head = of_head[at / (I::kDim / 4)];
          others[i].values = reinterpret_cast<const float4*>(from)[at];
          others[i].exponent = head.x;
          others[i].total = head.y;
        }
#pragma unroll
        for (int i = 0; i < kPartsAtOnce; ++i) sum.add(others[i]);
      }
      if (whole) {
        store_result<I>(sum, result_rows(item), at);
        continue;
      }
      reinterpret_cast<float4*>(part)[at] = sum.values;
      if (at % (I::kDim / 4) == 0) {
        reinterpret_cast<float2*>(part + p_.group * I::kDim)[at / (I::kDim / 4)] =
            make_float2(sum.exponent, sum.total);
      }
    }
    if (!whole) deliver(item);
  }

  // Counts this thread block's part; the last one merges all parts of the item.
  __device__ __forceinline__ void deliver(const Item& item) {
    const int first = runs_.owner(item.start), last = runs_.owner(item.end() - 1);
    int* arrived = parts_ + kMaxWarps;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      int* counter = p_.counters + item.sequence * p_.batch.kv_heads + item.head;
      *arrived = atomicAdd(counter, 1);
      if (*arrived == last - first) *counter = 0;  // for the next launch
    }
    __syncthreads();
    if (*arrived != last - first) return;
    __threadfence();
    merge_blocks<I>(p_, item, runs_, first, last, result_rows(item));
  }

  // Sequences without a token get zeros.
  __device__ __forceinline__ void clear_empty() {
    const int row = p_.group * p_.batch.kv_heads * I::kDim / 8;
    for (int sequence = blockIdx.x; sequence < p_.batch.sequences; sequence += gridDim.x) {
      if (p_.batch.seq_lens[sequence] > 0) continue;
      auto* out = reinterpret_cast<uint4*>(p_.out) + static_cast<int64_t>(sequence) * row;
      for (int at = threadIdx.x; at < row; at += blockDim.x) out[at] = make_uint4(0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ const uint8_t* query_rows(const Item& item) const {
    const int64_t row = item.sequence * p_.query_stride;
    return p_.query + (row + item.head * p_.group * I::kDim) * 2;
  }

  __device__ __forceinline__ uint8_t* result_rows(const Item& item) const {
    const int64_t head = static_cast<int64_t>(item.sequence) * p_.batch.kv_heads + item.head;
    return p_.out + head * p_.group * I::kDim * 2;
  }

  const DecodeParams& p_;
  const int lane_, warp_, warps_;
  uint8_t* stages_;
  uint64_t* barriers_;
  int* parts_;  // byte of each warp's part within the stages, or -1; then the count of deliveries
  Runs runs_;
  int begin_, end_;
};

template <class I>
__global__ void __launch_bounds__(I::kWarps * 32, 1)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  Decoder<I>(p).run();
}

}  // namespace comet::kv4
