// SPDX-License-Identifier: Apache-2.0
// C interface of KV4 attention; comet/kernels/kv4_call.py mirrors the structs.
//
// cache: [pages][kv_heads][page bytes] (comet/attention/page.cuh); tail: [slots][kv_heads][64][D],
// 16-bit keys of the page that a sequence has not filled; block_tables: [batch], rows table_stride
// apart, page of each 64 tokens; seq_lens, slots: [batch].
#pragma once

#include <stdint.h>

#include "comet/status.h"

struct CometKv4DecodeArgs {
  uint32_t size;  // sizeof(CometKv4DecodeArgs)
  int32_t dtype;  // comet::Dtype of tail, query and out
  int32_t batch;
  int32_t kv_heads;
  int32_t head_dim;  // 64 or 128
  int32_t heads;     // 1 to 16 a KV head
  int32_t window;    // tokens that a query sees; 0 for all
  int32_t warps;     // of a thread block, 1 to 8
  int32_t stages;    // pages under way for each warp, at least 2
  int32_t blocks;    // thread blocks
  // Launch before the previous kernel of the stream has ended; it may write anything but integers.
  int32_t dependent_launch;
  float scale;  // of the scores, positive
  int64_t table_stride;
  int64_t query_stride;  // elements between sequences, a multiple of 8
  const void* cache;
  const void* tail;
  const int32_t* block_tables;
  const int32_t* seq_lens;
  const int32_t* slots;
  const void* query;  // [batch][heads][D]
  void* out;          // [batch][heads][D], contiguous
  float* partials;    // for each block 2 * (group * D + group rounded up to even * 2) floats
  int32_t* counters;  // batch * kv_heads, zero; left zero
};

struct CometKv4AppendArgs {
  uint32_t size;
  int32_t dtype;  // of tail, key and value
  int32_t batch;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t max_new_tokens;  // at least the most new tokens of a sequence
  // As for decode.
  int32_t dependent_launch;
  int64_t table_stride;
  int64_t key_stride;  // elements between tokens, a multiple of 8
  int64_t value_stride;
  void* cache;
  void* tail;
  const int32_t* block_tables;
  const int32_t* seq_lens;  // the new tokens included
  const int32_t* slots;
  const void* key;             // [tokens][kv_heads][D]
  const void* value;           // [tokens][kv_heads][D]
  const int32_t* query_start;  // [batch + 1], or null: one token a sequence
};

struct CometKv4UnpackArgs {
  uint32_t size;
  int32_t dtype;  // of tail, key and value
  int32_t batch;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t max_pages;  // of a sequence
  int32_t tokens;     // rows of key and value; tokens beyond them are left out
  int64_t table_stride;
  const void* cache;
  const void* tail;
  const int32_t* block_tables;
  const int32_t* seq_lens;
  const int32_t* slots;
  const int32_t* starts;  // [batch], row of each sequence's first token
  void* key;              // [tokens][kv_heads][D]
  void* value;            // [tokens][kv_heads][D]
};

COMET_API int comet_kv4_decode(const CometKv4DecodeArgs* args, cudaStream_t stream);
COMET_API int comet_kv4_append(const CometKv4AppendArgs* args, cudaStream_t stream);
COMET_API int comet_kv4_unpack(const CometKv4UnpackArgs* args, cudaStream_t stream);
