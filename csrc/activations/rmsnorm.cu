// SPDX-License-Identifier: Apache-2.0
// Residual addition, RMSNorm, permutation and quantization in one pass.
#include "launch.cuh"

COMET_API int comet_rmsnorm_quantize(const CometQuantizeArgs* args, cudaStream_t stream) {
  if (args == nullptr || args->size != sizeof(*args)) return kCometBadStructSize;
  if (args->weight == nullptr) return kCometBadPointer;
  if (args->sum_out != nullptr && args->second == nullptr) return kCometBadOption;
  const bool vectors = comet::aligned(args->weight, 0) && comet::aligned(args->sum_out, 0) &&
                       comet::aligned(args->second, args->second_stride);
  return comet::launch<comet::RmsNormSource>(*args, vectors, stream);
}
