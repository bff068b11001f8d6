// SPDX-License-Identifier: Apache-2.0
// Permutation and quantization of a 16-bit activation matrix.
#include "launch.cuh"

COMET_API int comet_quantize(const CometQuantizeArgs* args, cudaStream_t stream) {
  if (args == nullptr || args->size != sizeof(*args)) return kCometBadStructSize;
  return comet::launch<comet::PlainSource>(*args, true, stream);
}
