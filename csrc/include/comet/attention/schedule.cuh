// SPDX-License-Identifier: Apache-2.0
// How a batch is shared out. The pages of all sequences and KV heads stand in one row, sequence by
// sequence and head by head; every thread block takes an equal run of it, however long each
// sequence is, and knows its run from the lengths alone.
#pragma once

#include "comet/attention/instructions.cuh"
#include "comet/attention/page.cuh"

namespace comet::kv4 {

struct Batch {
  const int* seq_lens;
  int sequences, kv_heads;
  int window;  // 0: a query sees everything
};

// Runs of `total` pages over `blocks` thread blocks, which differ by one page at most.
struct Runs {
  int each, longer;  // the first `longer` runs have one page more

  static __host__ __device__ constexpr Runs of(int total, int blocks) {
    return {total / blocks, total % blocks};
  }
  __host__ __device__ constexpr int begin(int block) const {
    return block * each + (block < longer ? block : longer);
  }
  // The thread block whose run holds page `position`.
  __host__ __device__ constexpr int owner(int position) const {
    const int start = longer * (each + 1);
    return position < start ? position / (each + 1) : longer + (position - start) / each;
  }
};

// Pages of the whole batch; every lane of a warp takes part.
__device__ __forceinline__ int total_pages(const Batch& batch, int lane) {
  int pages = 0;
#pragma unroll 4
  for (int sequence = lane; sequence < batch.sequences; sequence += 32) {
    pages += span_of(batch.seq_lens[sequence], batch.window).count;
  }
  return lane_sum(pages) * batch.kv_heads;
}

// The sequence and KV head that page `position` of the row belongs to.
struct Item {
  int sequence, head;
  int length;  // of the sequence
  Span span;   // its pages
  int start;   // of the item in the row

  // By a whole warp; `position` is within the row.
  static __device__ __forceinline__ Item find(const Batch& batch, int position, int lane) {
    Item item = {};
    for (int base = 0;; base += 32) {
      const int sequence = base + lane;
      const int length = sequence < batch.sequences ? batch.seq_lens[sequence] : 0;
      int upto = span_of(length, batch.window).count * batch.kv_heads;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int before = shuffle_up(upto, lanes);
        if (lane >= lanes) upto += before;
      }
      const uint32_t found = ballot(item.start + upto > position);
      if (found != 0) {
        const int source = first_set(found);
        item.sequence = base + source;
        item.load(batch);
        item.start += shuffle(upto, source) - item.span.count * batch.kv_heads;
        item.head = (position - item.start) / item.span.count;
        item.start += item.head * item.span.count;
        return item;
      }
      item.start += shuffle(upto, 31);
    }
  }

  // Moves on to the item that holds page `position`, which lies further on in the row.
  __device__ __forceinline__ void advance(const Batch& batch, int position) {
    while (position >= start + span.count) {
      start += span.count;
      if (++head == batch.kv_heads) {
        head = 0;
        ++sequence;
        load(batch);
      }
    }
  }

  __device__ __forceinline__ int end() const { return start + span.count; }
  // Number within the sequence of the page at `position`.
  __device__ __forceinline__ int page(int position) const { return span.first + position - start; }
  // Whether that page is unfinished: its keys are in the tail.
  __device__ __forceinline__ bool is_tail(int page) const { return page == length / kPage; }

 private:
  __device__ __forceinline__ void load(const Batch& batch) {
    length = batch.seq_lens[sequence];
    span = span_of(length, batch.window);
  }
};

}  // namespace comet::kv4
