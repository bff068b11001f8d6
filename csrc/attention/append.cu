// SPDX-License-Identifier: Apache-2.0
// Entry of the append to a KV4 cache.
#include "comet/attention/launch.cuh"

COMET_API int comet_kv4_append(const CometKv4AppendArgs* args, cudaStream_t stream) {
  using namespace comet::kv4;
  if (args == nullptr) return kCometBadStructSize;
  if (const int status = check(*args)) return status;
  return by_type(*args, [&](auto type, auto dim) {
    using T = decltype(type);
    constexpr int kDim = dim.value;
    const AppendParams p = params_of(*args);
    const dim3 grid = append_grid<kDim>(p, args->max_new_tokens, args->batch);
    constexpr int kShared = Appender<T, kDim>::kSharedBytes;
    return launch_overlapping(append_kernel<T, kDim>, grid, kDim, kShared, p,
                              args->dependent_launch != 0, stream);
  });
}
