// SPDX-License-Identifier: Apache-2.0
// What KV4 attention needs of the machine: one function an instruction or two. Everything that only
// a GPU can do is here, so that the rest also runs in a test that emulates a warp on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

namespace comet::kv4 {

constexpr unsigned kAllLanes = 0xffffffffu;

// 16-bit types of keys, queries and results.
struct Fp16 {};
struct Bf16 {};

__device__ __forceinline__ uint8_t* dynamic_shared() {
  extern __shared__ __align__(128) uint8_t shared[];
  return shared;
}

// Floats.

template <class T>
__device__ __forceinline__ float2 to_floats(uint32_t pair) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

// Two floats rounded to T, `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t to_pair(float low, float high) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

__device__ __forceinline__ uint32_t multiply_halves(uint32_t a, uint32_t b) {
  const __half2 product =
      __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

// a * b - product: what rounding took from the product.
__device__ __forceinline__ uint32_t rest_of_product(uint32_t a, uint32_t b, uint32_t product) {
  const __half2 rest =
      __hfma2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b),
              __hneg2(*reinterpret_cast<const __half2*>(&product)));
  return *reinterpret_cast<const uint32_t*>(&rest);
}

// Bytes 1 and 3 of a word, each as a half's low byte.
__device__ __forceinline__ uint32_t odd_bytes(uint32_t word) {
  return __byte_perm(word, 0, 0x4341);
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// IEEE division, whatever the compiler's options.
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }

__device__ __forceinline__ uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(uint32_t bits) { return __uint_as_float(bits); }

// Warps.

__device__ __forceinline__ float shuffle_xor(float x, int lanes) {
  return __shfl_xor_sync(kAllLanes, x, lanes);
}
__device__ __forceinline__ float shuffle(float x, int lane) {
  return __shfl_sync(kAllLanes, x, lane);
}
__device__ __forceinline__ int shuffle(int x, int lane) { return __shfl_sync(kAllLanes, x, lane); }
__device__ __forceinline__ int shuffle_up(int x, int lanes) {
  return __shfl_up_sync(kAllLanes, x, lanes);
}
__device__ __forceinline__ bool any_lane(bool value) { return __any_sync(kAllLanes, value); }
__device__ __forceinline__ uint32_t ballot(bool value) { return __ballot_sync(kAllLanes, value); }
__device__ __forceinline__ int lane_sum(int x) { return __reduce_add_sync(kAllLanes, x); }
__device__ __forceinline__ int first_set(uint32_t bits) { return __ffs(bits) - 1; }

// Tensor cores: d += a * b, 16 rows, 8 columns, 16 deep.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// The 8 x 8 matrix of 16-bit values whose row lane / 4 holds this lane's pair at column 2 (lane %
// 4), transposed.
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Programmatic dependent launch: a kernel launched that way starts before its predecessor has
// ended.

// From now on the next kernel may start. Called after `wait_dependencies`: a kernel then overlaps
// the one in front of it and no other.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels in front have ended and their writes are visible.
__device__ __forceinline__ void wait_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Global memory.

__device__ __forceinline__ uint4 load_global(const void* address) {
  return __ldg(static_cast<const uint4*>(address));
}
// Past the L1 cache: written by other thread blocks of the same launch.
__device__ __forceinline__ float4 load_shared_result(const float4* address) {
  return __ldcg(address);
}
__device__ __forceinline__ float2 load_shared_result(const float2* address) {
  return __ldcg(address);
}

// Copies from global to shared memory that complete on a barrier of the warp's own. On sm_90 one
// lane gives one order to the copy engine; before, every lane copies pieces of 16 bytes.

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// By one lane, before the warp synchronizes.
__device__ __forceinline__ void init_barrier(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr int kArrivals = 1;
#else
  constexpr int kArrivals = 32;
#endif
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "n"(kArrivals)
               : "memory");
}

// Makes what this thread wrote to shared memory, barriers included, known to the copy engine.
__device__ __forceinline__ void fence_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void copy_async(uint8_t* to, const uint8_t* from, int bytes,
                                           uint64_t* barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    const uint32_t address = shared_address(barrier);
    asm volatile(
        "{\n.reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %3;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%1], [%2], %3, [%0], policy;\n}\n" ::"r"(address),
        "r"(shared_address(to)), "l"(from), "r"(bytes)
        : "memory");
  }
#else
  for (int at = lane * 16; at < bytes; at += 32 * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + at)),
                 "l"(from + at)
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}

__device__ __forceinline__ bool copies_arrived(uint32_t barrier, uint32_t parity) {
  uint32_t done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

__device__ __forceinline__ void wait_copies(uint64_t* barrier, uint32_t parity) {
  const uint32_t address = shared_address(barrier);
#ifdef COMET_WATCHDOG
  // Debugging builds turn a hang into an error.
  for (uint32_t tries = 0; !copies_arrived(address, parity); ++tries) {
    if (tries > (1u << 22)) asm volatile("trap;");
  }
#else
  while (!copies_arrived(address, parity)) {
  }
#endif
}

}  // namespace comet::kv4
