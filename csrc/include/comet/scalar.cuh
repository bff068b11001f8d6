// SPDX-License-Identifier: Apache-2.0
// 16-bit floats: four of them travel as one 8-byte word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace comet {

enum Dtype : int { kFp16 = 0, kBf16 = 1 };

// Conversions of one value or two, and of two packed pairs (bits of T) the larger magnitudes and the
// rounded products, which are those of the values as floats, rounded: these are exact.
template <class T>
struct Scalar;

template <>
struct Scalar<__half> {
  static __device__ __forceinline__ float to_float(unsigned short bits) {
    return __half2float(__ushort_as_half(bits));
  }
  static __device__ __forceinline__ unsigned short from_float(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  static __device__ __forceinline__ unsigned from_floats(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
  static __device__ __forceinline__ unsigned products(unsigned a, unsigned b) {
    const __half2 pair =
        __hmul2_rn(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
    return *reinterpret_cast<const unsigned*>(&pair);
  }
  static __device__ __forceinline__ unsigned larger_magnitudes(unsigned a, unsigned b) {
    const __half2 larger =
        __hmax2(__habs2(*reinterpret_cast<__half2*>(&a)), __habs2(*reinterpret_cast<__half2*>(&b)));
    return *reinterpret_cast<const unsigned*>(&larger);
  }
};

template <>
struct Scalar<__nv_bfloat16> {
  static __device__ __forceinline__ float to_float(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
  static __device__ __forceinline__ unsigned short from_float(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  static __device__ __forceinline__ unsigned from_floats(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
  static __device__ __forceinline__ unsigned products(unsigned a, unsigned b) {
    const __nv_bfloat162 pair =
        __hmul2_rn(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
    return *reinterpret_cast<const unsigned*>(&pair);
  }
  static __device__ __forceinline__ unsigned larger_magnitudes(unsigned a, unsigned b) {
    const __nv_bfloat162 larger = __hmax2(__habs2(*reinterpret_cast<__nv_bfloat162*>(&a)),
                                          __habs2(*reinterpret_cast<__nv_bfloat162*>(&b)));
    return *reinterpret_cast<const unsigned*>(&larger);
  }
};

// value rounded to T and back: what a tensor of that type would have held.
template <class T>
__device__ __forceinline__ float round_to(float value) {
  return Scalar<T>::to_float(Scalar<T>::from_float(value));
}

template <class T>
__device__ __forceinline__ void unpack4(uint2 packed, float (&values)[4]) {
  values[0] = Scalar<T>::to_float(packed.x & 0xffff);
  values[1] = Scalar<T>::to_float(packed.x >> 16);
  values[2] = Scalar<T>::to_float(packed.y & 0xffff);
  values[3] = Scalar<T>::to_float(packed.y >> 16);
}

template <class T>
__device__ __forceinline__ uint2 pack4(const float (&values)[4]) {
  return make_uint2(Scalar<T>::from_floats(values[0], values[1]),
                    Scalar<T>::from_floats(values[2], values[3]));
}

template <class T>
__device__ __forceinline__ uint2 multiply4(uint2 a, uint2 b) {
  return make_uint2(Scalar<T>::products(a.x, b.x), Scalar<T>::products(a.y, b.y));
}

}  // namespace comet
