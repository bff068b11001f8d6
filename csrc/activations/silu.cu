// SPDX-License-Identifier: Apache-2.0
// SiLU(gate) * up, permutation and quantization in one pass.
#include "launch.cuh"

COMET_API int comet_silu_quantize(const CometQuantizeArgs* args, cudaStream_t stream) {
  if (args == nullptr || args->size != sizeof(*args)) return kCometBadStructSize;
  if (args->second == nullptr) return kCometBadPointer;
  const bool vectors = comet::aligned(args->second, args->second_stride);
  return comet::launch<comet::SiluSource>(*args, vectors, stream);
}
