// SPDX-License-Identifier: Apache-2.0
// Thread blocks that share the K of a tile: exact int32 sums through the cluster or through memory.
//
// Integer addition is associative, so neither way changes a bit of the result.
#pragma once

#include "comet/sm90/epilogue.cuh"
#include "comet/sm90/sums.cuh"

namespace comet::sm90 {

// Which classes of sums a thread block holds. With both, the INT4 sums are the parked ones.
struct Classes {
  bool int4, int8;

  __device__ __forceinline__ static Classes of(const GemmParams& p, int begin, int end) {
    return {begin<min(end, p.int4_blocks), end> max(begin, p.int4_blocks)};
  }
};

__device__ __forceinline__ void add(int4& a, const int4& b) {
  a.x += b.x;
  a.y += b.y;
  a.z += b.z;
  a.w += b.w;
}

constexpr int kConsumerBarrier = 7;

// Adds up the chunks at these addresses over the blocks of the cluster: INT4 sums of those that
// have them, then INT8 sums, `items` in all. Blocks start at different places of that list, so that
// they do not all read the same one at once; loads of several are issued together, a remote one
// takes long.
template <int kPeers, int kCount>
__device__ __forceinline__ void add_peers(const GemmParams& p, int4 (&sums4)[kCount],
                                          int4 (&sums8)[kCount], const uint32_t (&address)[kCount],
                                          uint32_t class_bytes, unsigned items, unsigned rank) {
  const unsigned int4_peers = p.last_int4;
  for (unsigned base = 0; base < items; base += kPeers) {
    int4 part[kPeers][kCount];
#pragma unroll
    for (int i = 0; i < kPeers; ++i) {
      const unsigned turn = rank + base + i, item = turn < items ? turn : turn - items;
      const bool second = item >= int4_peers;
      const unsigned peer = second ? p.first_int8 + item - int4_peers : item;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        part[i][j] = {0, 0, 0, 0};
        if (base + i < items) {
          part[i][j] = load_peer4(peer_address(address[j] + (second ? class_bytes : 0), peer));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPeers; ++i) {
      const unsigned turn = rank + base + i, item = turn < items ? turn : turn - items;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (item >= int4_peers) {
          add(sums8[j], part[i][j]);
        } else {
          add(sums4[j], part[i][j]);
        }
      }
    }
  }
}

// The sum of all slices at this address of the first.
template <class I>
__device__ __forceinline__ int4 sum_of_slices(uint32_t address) {
  int4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int slice = 0; slice < I::kSlices; ++slice) {
    const uint4 v = load_shared4(address + slice * I::kSliceBytes);
    add(sum, {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z),
              static_cast<int>(v.w)});
  }
  return sum;
}

// Adds the sums of the other slices of a block to those of its first.
template <class I>
__device__ __forceinline__ void add_slices(uint32_t shared, bool second) {
  constexpr unsigned kWords = I::kChunks * I::kRowThreads;
  named_barrier(kConsumerBarrier, I::kConsumers);
  const uint32_t first = shared + (second ? I::kClassBytes : 0);
#pragma unroll 1
  for (unsigned word = threadIdx.x; word < kWords; word += I::kConsumers) {
    const int4 sum = sum_of_slices<I>(first + word * 16);
    store_shared4(first + word * 16, sum.x, sum.y, sum.z, sum.w);
  }
}

// Finishes a tile whose K this block has to itself: every slice takes its share of the chunks.
template <class I>
__device__ __forceinline__ void finish_slices(uint32_t shared, bool two, int slice,
                                              const Epilogue<I>& epilogue) {
  named_barrier(kConsumerBarrier, I::kConsumers);
  const unsigned consumer = threadIdx.x % I::kRowThreads;
  const auto sums = [&](int chunk) {
    return sum_of_slices<I>(shared + (chunk * I::kRowThreads + consumer) * 16);
  };
  if (two) {
    const auto sums8 = [&](int chunk) {
      return sum_of_slices<I>(shared + I::kClassBytes + (chunk * I::kRowThreads + consumer) * 16);
    };
    epilogue.template finish_every<true, I::kSlices>(consumer, slice, sums, sums8);
  } else {
    const auto none = [](int) { return int4{0, 0, 0, 0}; };
    epilogue.template finish_every<false, I::kSlices>(consumer, slice, sums, none);
  }
}

// Every block of the cluster leaves its sums in its own shared memory (over the stages, which are
// used up) and finishes its share of the tile.
template <class I>
__device__ __forceinline__ void share_in_cluster(const GemmParams& p, uint32_t shared,
                                                 Sums<I>& sums, const Classes& classes, int slice,
                                                 const Epilogue<I>& epilogue) {
  const unsigned split = p.split, rank = blockIdx.x % split;
  const bool two = p.int4_blocks > 0 && p.int4_blocks < p.blocks;
  async_copies_wait();  // of the terms
  named_barrier(kConsumerBarrier, I::kConsumers);
  const uint32_t own = shared + slice * I::kSliceBytes + threadIdx.x % I::kRowThreads * 16;
#pragma unroll
  for (int c = 0; c < I::kChunks; ++c) {
    const int4 last = sums.chunk(c);
    const uint32_t address = own + c * I::kRowThreads * 16;
    if (classes.int4 && classes.int8) {
      const int4 parked = sums.parked_chunk(c);
      store_shared4(address, parked.x, parked.y, parked.z, parked.w);
    }
    const bool second = two && classes.int8;
    store_shared4(address + (second ? I::kClassBytes : 0), last.x, last.y, last.z, last.w);
  }
  if constexpr (I::kSlices > 1) {
    if (split == 1) return finish_slices<I>(shared, two, slice, epilogue);
    if (classes.int4 || !two) add_slices<I>(shared, false);
    if (classes.int8 && two) add_slices<I>(shared, true);
  }
  cluster_arrive();
  cluster_wait();

  // Units of one chunk of a warp; a warp takes several at a time.
  constexpr unsigned kUnits = I::kChunks * I::kRowThreads / 32, kWarps = I::kConsumers / 32;
  constexpr int kBatch = I::kChunks < 4 ? I::kChunks : I::kTokens < 128 ? 2 : 4;
  constexpr int kFewPeers = 4, kPeers = kBatch > 2 ? 4 : 8;
  const unsigned items = p.last_int4 + (two ? split - p.first_int8 : 0);
  const unsigned end = kUnits * (rank + 1) / split;
  bool arrived = false;
  for (unsigned unit = kUnits * rank / split + threadIdx.x / 32; unit < end;
       unit += kBatch * kWarps) {
    uint32_t address[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      address[j] = shared + min(unit + j * kWarps, end - 1) * 512 + threadIdx.x % 32 * 16;
    }
    int4 sum4[kBatch] = {}, sum8[kBatch] = {};
    if (kPeers > kFewPeers && items > kFewPeers) {
      add_peers<kPeers>(p, sum4, sum8, address, I::kClassBytes, items, rank);
    } else {
      add_peers<kFewPeers>(p, sum4, sum8, address, I::kClassBytes, items, rank);
    }
    if (unit + kBatch * kWarps >= end) {
      cluster_arrive();  // before the stores: peers wait for reads only
      arrived = true;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (unit + j * kWarps >= end) continue;
      const unsigned item = (unit + j * kWarps) * 32 + threadIdx.x % 32;
      const unsigned consumer = item % I::kRowThreads, chunk = item / I::kRowThreads;
      if (two) {
        epilogue.template finish<true>(consumer, chunk, sum4[j], sum8[j]);
      } else {
        epilogue.template finish<false>(consumer, chunk, sum4[j], sum8[j]);
      }
    }
  }
  if (!arrived) cluster_arrive();
  cluster_wait();  // shared memory must outlive the reads of the peers
}

// Stream-K. A block that does not hold the end of a tile's K leaves its sums in its own slot.
template <class I>
__device__ __forceinline__ int4* partial_slot(const GemmParams& p, int thread_block, int warpgroup,
                                              int int8) {
  const int set = (thread_block * 2 + int8) * I::kWarpgroups + warpgroup;
  return p.partials + static_cast<size_t>(set) * I::kChunks * 128;
}

template <class I>
__device__ __forceinline__ void hand_on(const GemmParams& p, Sums<I>& sums, const Classes& classes,
                                        int warpgroup) {
  const unsigned thread = reread_thread() % 128;
  int4* last = partial_slot<I>(p, blockIdx.x, warpgroup, classes.int8) + thread;
#pragma unroll
  for (int c = 0; c < I::kChunks; ++c) __stcg(last + c * 128, sums.chunk(c));
  if (classes.int4 && classes.int8) {
    int4* parked = partial_slot<I>(p, blockIdx.x, warpgroup, 0) + thread;
#pragma unroll
    for (int c = 0; c < I::kChunks; ++c) __stcg(parked + c * 128, sums.parked_chunk(c));
  }
  named_barrier(1 + warpgroup, 128);
  if (thread == 0) store_release(p.flags + blockIdx.x * I::kWarpgroups + warpgroup, 1);
}

// Loads go out in batches: enough to cover their latency, few enough for the registers.
template <class I, class Add>
__device__ __forceinline__ void add_partial(const int4* part, Add&& add_chunk) {
  constexpr int kBatch = I::kChunks < 4 ? I::kChunks : I::kSums < 64 || I::kWarpgroups == 3 ? 4 : 8;
#pragma unroll
  for (int base = 0; base < I::kChunks; base += kBatch) {
    int4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) v[i] = __ldcg(part + (base + i) * 128);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) add_chunk(base + i, v[i]);
    asm volatile("" ::: "memory");
  }
}

// The block that holds the end of a tile's K waits for the others and adds their sums to its own.
template <class I>
__device__ __forceinline__ void collect(const GemmParams& p, Sums<I>& sums, const Work& work,
                                        bool two, int warpgroup) {
  const unsigned thread = reread_thread() % 128;
  const int origin = work.tile * p.blocks;
  int end = origin + work.begin;
  for (int other = blockIdx.x - 1; end > origin; --other) {
    const int begin = max(run_begin(p, other), origin);
    const Classes classes = Classes::of(p, begin - origin, end - origin);
    end = begin;
    int* flag = p.flags + other * I::kWarpgroups + warpgroup;
    if (thread == 0) wait_flag(flag);
    named_barrier(1 + warpgroup, 128);
    if (classes.int8 || !two) {
      add_partial<I>(partial_slot<I>(p, other, warpgroup, classes.int8) + thread,
                     [&](int c, const int4& v) {
                       sums.value(c * 4) += v.x;
                       sums.value(c * 4 + 1) += v.y;
                       sums.value(c * 4 + 2) += v.z;
                       sums.value(c * 4 + 3) += v.w;
                     });
    }
    if (classes.int4 && two) {
      add_partial<I>(partial_slot<I>(p, other, warpgroup, 0) + thread, [&](int c, int4 v) {
        add(v, sums.parked_chunk(c));
        sums.park_chunk(c, v);
      });
    }
    named_barrier(1 + warpgroup, 128);
    if (thread == 0) *flag = 0;  // ready for the next launch
  }
}

}  // namespace comet::sm90
