// SPDX-License-Identifier: Apache-2.0
// From the C structs to what the kernels take, and what the launchers refuse.
#pragma once

#include <type_traits>

#include "comet/attention/append.cuh"
#include "comet/attention/params.cuh"
#include "comet/attention/unpack.cuh"
#include "comet/kv4.h"

namespace comet::kv4 {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kMaxGroup = 16;

inline bool aligned(const void* pointer, uintptr_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// What the three structs share.
template <class Args>
int check_cache(const Args& a) {
  if (a.size != sizeof(Args)) return kCometBadStructSize;
  if (a.dtype != 0 && a.dtype != 1) return kCometBadDtype;
  if (a.batch < 1 || a.kv_heads < 1 || (a.head_dim != 64 && a.head_dim != 128)) {
    return kCometBadShape;
  }
  // The grids of append and unpack have the batch and the KV heads as second and third size.
  if (a.batch > 65535 || a.kv_heads > 65535) return kCometBadShape;
  if (!aligned(a.cache, 16) || !aligned(a.tail, 16)) return kCometBadPointer;
  const bool integers = aligned(a.block_tables, 4) && aligned(a.seq_lens, 4) && aligned(a.slots, 4);
  return integers ? kCometOk : kCometBadPointer;
}

inline int check(const CometKv4DecodeArgs& a) {
  if (const int status = check_cache(a)) return status;
  const int group = a.heads / a.kv_heads;
  if (a.heads % a.kv_heads != 0 || group < 1 || group > kMaxGroup) return kCometBadShape;
  const int most_warps = group > 8 ? 8 : kMaxWarps;
  if (a.warps < 1 || a.warps > most_warps || a.stages < 2 || a.blocks < 1) return kCometBadOption;
  if (a.window < 0 || !(a.scale > 0.0f) || a.query_stride % 8 != 0) return kCometBadOption;
  if (!aligned(a.query, 16) || !aligned(a.out, 16)) return kCometBadPointer;
  if (!aligned(a.partials, 16) || !aligned(a.counters, 4)) return kCometBadPointer;
  return kCometOk;
}

inline int check(const CometKv4AppendArgs& a) {
  if (const int status = check_cache(a)) return status;
  if (a.max_new_tokens < 1) return kCometBadShape;
  if (a.key_stride % 8 != 0 || a.value_stride % 8 != 0) return kCometBadOption;
  return aligned(a.key, 16) && aligned(a.value, 16) ? kCometOk : kCometBadPointer;
}

inline int check(const CometKv4UnpackArgs& a) {
  if (const int status = check_cache(a)) return status;
  if (a.max_pages < 1 || a.tokens < 1) return kCometBadShape;
  if (!aligned(a.starts, 4)) return kCometBadPointer;
  return aligned(a.key, 16) && aligned(a.value, 16) ? kCometOk : kCometBadPointer;
}

inline DecodeParams params_of(const CometKv4DecodeArgs& a) {
  DecodeParams p = {};
  p.batch = {a.seq_lens, a.batch, a.kv_heads, a.window};
  p.cache = static_cast<const uint8_t*>(a.cache);
  p.tail = static_cast<const uint8_t*>(a.tail);
  p.block_tables = a.block_tables;
  p.slots = a.slots;
  p.query = static_cast<const uint8_t*>(a.query);
  p.out = static_cast<uint8_t*>(a.out);
  p.partials = a.partials;
  p.counters = a.counters;
  p.table_stride = a.table_stride;
  p.query_stride = a.query_stride;
  p.group = a.heads / a.kv_heads;
  p.stages = a.stages;
  p.score_factor = a.scale * kLog2E;
  return p;
}

inline AppendParams params_of(const CometKv4AppendArgs& a) {
  AppendParams p = {};
  p.cache = static_cast<uint8_t*>(a.cache);
  p.tail = static_cast<uint8_t*>(a.tail);
  p.block_tables = a.block_tables;
  p.seq_lens = a.seq_lens;
  p.slots = a.slots;
  p.key = static_cast<const uint8_t*>(a.key);
  p.value = static_cast<const uint8_t*>(a.value);
  p.query_start = a.query_start;
  p.table_stride = a.table_stride;
  p.key_stride = a.key_stride;
  p.value_stride = a.value_stride;
  p.kv_heads = a.kv_heads;
  p.one_token = a.max_new_tokens == 1;
  return p;
}

inline UnpackParams params_of(const CometKv4UnpackArgs& a) {
  UnpackParams p = {};
  p.cache = static_cast<const uint8_t*>(a.cache);
  p.tail = static_cast<const uint8_t*>(a.tail);
  p.block_tables = a.block_tables;
  p.seq_lens = a.seq_lens;
  p.slots = a.slots;
  p.starts = a.starts;
  p.key = static_cast<uint8_t*>(a.key);
  p.value = static_cast<uint8_t*>(a.value);
  p.table_stride = a.table_stride;
  p.kv_heads = a.kv_heads;
  p.tokens = a.tokens;
  return p;
}

template <int kDim>
using Dim = std::integral_constant<int, kDim>;

// Calls visit(T(), Dim<D>()) for a struct's type and head dimension.
template <class Args, class Visit>
int by_type(const Args& a, Visit visit) {
  const bool bf16 = a.dtype == 1, wide = a.head_dim == 128;
  if (bf16) return wide ? visit(Bf16(), Dim<128>()) : visit(Bf16(), Dim<64>());
  return wide ? visit(Fp16(), Dim<128>()) : visit(Fp16(), Dim<64>());
}

}  // namespace comet::kv4
