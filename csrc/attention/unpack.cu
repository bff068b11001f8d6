// SPDX-License-Identifier: Apache-2.0
// Entry of the restoring of a KV4 cache to 16 bit.
#include "comet/attention/arguments.cuh"

COMET_API int comet_kv4_unpack(const CometKv4UnpackArgs* args, cudaStream_t stream) {
  using namespace comet::kv4;
  if (args == nullptr) return kCometBadStructSize;
  if (const int status = check(*args)) return status;
  return by_type(*args, [&](auto type, auto dim) {
    using T = decltype(type);
    constexpr int kDim = dim.value;
    const dim3 grid(args->max_pages, args->kv_heads, args->batch);
    unpack_kernel<T, kDim><<<grid, kDim, 0, stream>>>(params_of(*args));
    return comet::launch_status();
  });
}
