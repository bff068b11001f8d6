// SPDX-License-Identifier: Apache-2.0
// wgmma m64nNk32, int32 += u8 * s8: A in registers, B in swizzled shared memory.
#pragma once

#include <stdint.h>

namespace comet::sm90 {

// Orders register writes before the next wgmma.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses of accumulators across a wait.
template <int kCount>
__device__ __forceinline__ void pin(int (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Descriptor of a K-major operand whose rows are 128 bytes, 128-byte swizzled; groups of 8 rows lie
// 1024 bytes apart. The next 32 of K are 32 bytes further: add 2.
__device__ __forceinline__ uint64_t operand_descriptor(uint32_t shared) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kLeading = 1ull << 16;  // ignored for swizzled layouts
  return kSwizzle128 | kGroupStride | kLeading | ((shared & 0x3FFFF) >> 4);
}

// clang-format off
#define COMET_D4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define COMET_D16(i) COMET_D4(i), COMET_D4(i + 4), COMET_D4(i + 8), COMET_D4(i + 12)
#define COMET_D64(i) COMET_D16(i), COMET_D16(i + 16), COMET_D16(i + 32), COMET_D16(i + 48)
#define COMET_N4 "%0, %1, %2, %3"
#define COMET_N8 COMET_N4 ", %4, %5, %6, %7"
#define COMET_N16 COMET_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define COMET_N32 COMET_N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define COMET_N64 COMET_N32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define COMET_N128 COMET_N64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

#define COMET_WGMMA(tokens, numbers, a0, a1, a2, a3, desc, ...)                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens "k32.s32.u8.s8 {" numbers "}, {%" #a0 \
               ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #desc ", 1;\n"                               \
               : __VA_ARGS__                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))

// d += a * B for 64 channels and kTokens tokens.
template <int kTokens>
__device__ __forceinline__ void wgmma(int (&d)[kTokens / 2], const uint32_t* a,
                                      uint64_t descriptor) {
  if constexpr (kTokens == 8) {
    COMET_WGMMA(8, COMET_N4, 4, 5, 6, 7, 8, COMET_D4(0));
  } else if constexpr (kTokens == 16) {
    COMET_WGMMA(16, COMET_N8, 8, 9, 10, 11, 12, COMET_D4(0), COMET_D4(4));
  } else if constexpr (kTokens == 32) {
    COMET_WGMMA(32, COMET_N16, 16, 17, 18, 19, 20, COMET_D16(0));
  } else if constexpr (kTokens == 64) {
    COMET_WGMMA(64, COMET_N32, 32, 33, 34, 35, 36, COMET_D16(0), COMET_D16(16));
  } else if constexpr (kTokens == 128) {
    COMET_WGMMA(128, COMET_N64, 64, 65, 66, 67, 68, COMET_D64(0));
  } else {
    static_assert(kTokens == 256, "no such instance");
    COMET_WGMMA(256, COMET_N128, 128, 129, 130, 131, 132, COMET_D64(0), COMET_D64(64));
  }
}

#undef COMET_WGMMA
#undef COMET_N128
#undef COMET_N64
#undef COMET_N32
#undef COMET_N16
#undef COMET_N8
#undef COMET_N4
#undef COMET_D64
#undef COMET_D16
#undef COMET_D4

}  // namespace comet::sm90
