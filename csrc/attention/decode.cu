// SPDX-License-Identifier: Apache-2.0
// Entry of decode attention: checks, and the choice of an instance.
#include "comet/attention/launch.cuh"

namespace comet::kv4 {
COMET_KV4_DECODE_INSTANCES(extern, Fp16)
COMET_KV4_DECODE_INSTANCES(extern, Bf16)
}  // namespace comet::kv4

COMET_API int comet_kv4_decode(const CometKv4DecodeArgs* args, cudaStream_t stream) {
  using namespace comet::kv4;
  if (args == nullptr) return kCometBadStructSize;
  if (const int status = check(*args)) return status;
  return by_type(*args, [&](auto type, auto dim) {
    using T = decltype(type);
    if (args->heads / args->kv_heads <= 8) {
      return launch_decode<Instance<T, dim.value, 1>>(*args, stream);
    }
    return launch_decode<Instance<T, dim.value, 2>>(*args, stream);
  });
}
