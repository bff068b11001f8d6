// SPDX-License-Identifier: Apache-2.0
// A GPU for tests without one: thread blocks run one after another, the lanes of one as coroutines
// that take turns at warp-wide and block-wide instructions. Slow and exact; no timing, no races.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#undef __launch_bounds__
#undef __grid_constant__
#undef __forceinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline

namespace machine {

constexpr size_t kStackBytes = 256 * 1024;

// Lanes that meet: everybody waits until all have come, and the last one does the work.
struct Meeting {
  int expected, arrived = 0, round = 0;
};

struct Warp {
  Meeting meeting{32};
  uint32_t in[32][16], out[32][4];
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  unsigned thread;
  bool done = false;
  const int* watched = nullptr;  // resumes when this differs from `seen`
  int seen = 0;
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Copy {
  uint8_t* to;
  const uint8_t* from;
  int bytes;
};

struct Block {
  std::map<const uint64_t*, Copy> copies;  // that have not arrived, by their barrier
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Meeting meeting{0};
  std::vector<uint64_t> shared;
  ucontext_t scheduler;
  Fiber* current = nullptr;
  std::function<void()> kernel;
};

inline Block* block;
inline Index grid_size, block_size, block_index;

inline void meet(Meeting& meeting, const std::function<void()>& work) {
  if (++meeting.arrived == meeting.expected) {
    work();
    meeting.arrived = 0;
    ++meeting.round;
    return;
  }
  Fiber* self = block->current;
  self->watched = &meeting.round;
  self->seen = meeting.round;
  swapcontext(&self->context, &block->scheduler);
}

inline Warp& warp() { return block->warps[block->current->thread / 32]; }
inline int lane() { return block->current->thread % 32; }

// An instruction of a whole warp: gives `count` words and gets what `work` makes of all lanes'
// words.
template <class Work>
uint32_t* collective(std::initializer_list<uint32_t> words, Work work) {
  Warp& w = warp();
  std::copy(words.begin(), words.end(), w.in[lane()]);
  meet(w.meeting, [&] { work(w); });
  return w.out[lane()];
}

inline void enter() {
  block->kernel();
  block->current->done = true;
  swapcontext(&block->current->context, &block->scheduler);
}

inline void prepare(Fiber& fiber, unsigned thread) {
  fiber.thread = thread;
  fiber.stack.reset(new char[kStackBytes]);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
}

inline void run_block(int threads, size_t shared_bytes, bool backwards,
                      const std::function<void()>& kernel) {
  Block here;
  block = &here;
  here.kernel = kernel;
  here.fibers.resize(threads);
  here.warps.resize(threads / 32);
  here.meeting.expected = threads;
  here.shared.assign(shared_bytes / 8 + 1, 0x7ff8dead7e01dead);  // NaN in every float type
  for (int i = 0; i < threads; ++i) prepare(here.fibers[i], i);
  for (bool running = true; running;) {
    running = false;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = here.fibers[backwards ? threads - 1 - i : i];
      if (fiber.done) continue;
      running = true;
      if (fiber.watched && *fiber.watched == fiber.seen) continue;
      fiber.watched = nullptr;
      here.current = &fiber;
      swapcontext(&here.scheduler, &fiber.context);
    }
  }
  if (!here.copies.empty()) std::abort();
}

// Thread blocks and their lanes in order or in the opposite one: where the order shows in a result,
// a barrier is missing.
inline void launch(int blocks, int threads, size_t shared_bytes, bool backwards,
                   const std::function<void()>& kernel) {
  grid_size.x = blocks;
  block_size.x = threads;
  for (int i = 0; i < blocks; ++i) {
    block_index.x = backwards ? blocks - 1 - i : i;
    run_block(threads, shared_bytes, backwards, kernel);
  }
}

}  // namespace machine

#define threadIdx (machine::Index{machine::block->current->thread})
#define blockIdx (machine::block_index)
#define blockDim (machine::block_size)
#define gridDim (machine::grid_size)

using std::max;
using std::min;

inline void __syncthreads() {
  machine::meet(machine::block->meeting, [] {});
}
inline void __syncwarp() {
  machine::meet(machine::warp().meeting, [] {});
}
inline void __threadfence() {}
inline int atomicAdd(int* address, int value) {
  const int before = *address;
  *address += value;
  return before;
}
