// SPDX-License-Identifier: Apache-2.0
// A launch of one instance of the decode kernel, and which instances there are.
#pragma once

#include "comet/attention/arguments.cuh"
#include "comet/attention/decode.cuh"

namespace comet::kv4 {

// A launch that may overlap the kernel in front of it.
template <class Params>
int launch_overlapping(void (*kernel)(Params), dim3 grid, int threads, int shared,
                       const Params& params, bool dependent, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, params));
}

template <class I>
int launch_decode(const CometKv4DecodeArgs& a, cudaStream_t stream) {
  const int shared = shared_bytes<I>(a.warps, a.stages);
  auto* kernel = decode_kernel<I>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return cuda_status(error);
  return launch_overlapping(kernel, a.blocks, a.warps * 32, shared, params_of(a),
                            a.dependent_launch != 0, stream);
}

// Instances by head dimension and tiles of 8 query heads; one source file a type.
#define COMET_KV4_DECODE_INSTANCES(prefix, T)                                                      \
  prefix template int launch_decode<Instance<T, 64, 1>>(const CometKv4DecodeArgs&, cudaStream_t);  \
  prefix template int launch_decode<Instance<T, 64, 2>>(const CometKv4DecodeArgs&, cudaStream_t);  \
  prefix template int launch_decode<Instance<T, 128, 1>>(const CometKv4DecodeArgs&, cudaStream_t); \
  prefix template int launch_decode<Instance<T, 128, 2>>(const CometKv4DecodeArgs&, cudaStream_t);

}  // namespace comet::kv4
