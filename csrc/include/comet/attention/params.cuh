// SPDX-License-Identifier: Apache-2.0
// What the host tells the decode kernel, and the kernel's compile-time shape.
#pragma once

#include "comet/attention/schedule.cuh"

// A build variant that only streams the pages, to time the copies by themselves: its results mean
// nothing.
#ifndef COMET_KV4_STREAM_ONLY
#define COMET_KV4_STREAM_ONLY 0
#endif

namespace comet::kv4 {

constexpr bool kStreamOnly = COMET_KV4_STREAM_ONLY != 0;
constexpr int kMaxWarps = 12;  // of a thread block

struct DecodeParams {
  Batch batch;
  const uint8_t* cache;  // [pages][kv_heads][Page::kBytes]
  const uint8_t* tail;   // [slots][kv_heads][64][D], 16 bit
  const int* block_tables;
  const int* slots;
  const uint8_t* query;  // [batch][heads][D], 16 bit
  uint8_t* out;
  float* partials;  // for each thread block and part: [group][D] sums, then [group] (exponent, sum)
  int* counters;    // one a sequence and KV head: thread blocks that have delivered their part
  int64_t table_stride;
  int64_t query_stride;  // elements
  int group;             // query heads a KV head
  int stages;            // pages under way for each warp
  float score_factor;    // scale * log2(e): scores are exponents of 2
};

// T: Fp16 or Bf16. kHeadTiles: tiles of 8 query heads. kWarps: most warps of an SM and of a thread
// block; pages under way fill its shared memory before there could be more.
template <class T_, int kDim_, int kHeadTiles_>
struct Instance {
  using T = T_;
  using P = Page<kDim_>;
  static constexpr int kDim = kDim_;
  static constexpr int kHeadTiles = kHeadTiles_;
  static constexpr int kGroup = 8 * kHeadTiles;  // most query heads a KV head
  static constexpr int kWarps = kHeadTiles == 1 ? kMaxWarps : 8;
  static constexpr int kRowBytes = kDim * 2;  // of the tail
  static constexpr int kTailBytes = kPage * kRowBytes;
  static constexpr int kTailRows = 32;  // that a stage holds
  static_assert(kTailRows * kRowBytes <= P::kBytes);
  // Where a stage's page was, a warp hands its sums on: [group][D] and [group] (exponent, sum).
  static_assert(kGroup * (kDim + 2) * 4 <= P::kBytes);
};

// Shared memory of a thread block: pages of each warp, their barriers, one word for the block and
// one for each warp.
template <class I>
constexpr int shared_bytes(int warps, int stages) {
  return warps * stages * (I::P::kBytes + 8) + (kMaxWarps + 1) * 4;
}

}  // namespace comet::kv4
