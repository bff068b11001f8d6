// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments and the choice of a kernel instance.
#pragma once

#include "kernel.cuh"

namespace comet {

constexpr int kSms = 132;  // of an H200; with the 108 of an A100 some counts take a second wave

inline bool aligned(const void* pointer, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 8 == 0 && stride % 4 == 0;
}

inline int check(const CometQuantizeArgs& a, int max_blocks) {
  const int blocks = a.int4_blocks + a.int8_blocks;
  if (a.dtype != kFp16 && a.dtype != kBf16) return kCometBadDtype;
  if (a.tokens < 0 || a.int4_blocks < 0 || a.int8_blocks < 0) return kCometBadShape;
  if (blocks < 1 || blocks > max_blocks) return kCometBadShape;
  if (a.channels < 1 || a.channels > blocks * kBlock) return kCometBadShape;
  if (a.mode < kTokenBlockMultiple || a.mode > kToken) return kCometBadOption;
  if (a.layout < kRows || a.layout > kSm80) return kCometBadOption;
  // A code minus its zero point needs five bits.
  if (a.layout == kSm80 && a.zero_point) return kCometBadOption;
  const void* outputs[] = {a.operand, a.scales, a.sums};
  for (const void* pointer : outputs) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % 4 != 0)
      return kCometBadPointer;
  }
  if (a.x == nullptr || reinterpret_cast<uintptr_t>(a.permutation) % 16 != 0) {
    return kCometBadPointer;
  }
  if (a.layout != kSm90 && a.int4_blocks > 0 && a.multiples == nullptr) return kCometBadPointer;
  return kCometOk;
}

template <class T, template <class> class Source, int Words, class Options>
int launch_instance(const QuantizeParams& p, cudaStream_t stream) {
  const CometQuantizeArgs& a = p.args;
  const int blocks = a.int4_blocks + a.int8_blocks;
  auto* kernel = quantize_kernel<T, Source, Words, Options>;

  cudaLaunchConfig_t config = {};
  config.gridDim = a.layout == kSm90 ? padded_tokens(a.tokens) : a.tokens;
  const int warps = (blocks + Words - 1) / Words;
  config.blockDim = warps * kWarp;
  config.dynamicSmemBytes =
      a.permutation != nullptr ? (warps * Words * kBlock + kRowOffset) * sizeof(T) : 0;
  config.stream = stream;
  if (config.dynamicSmemBytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, config.dynamicSmemBytes);
    if (error != cudaSuccess) return cuda_status(error);
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = a.dependent_launch ? 1 : 0;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, p));
}

// Whether thread blocks with so many words a warp run all tokens at once: an SM holds 1024 threads of
// 64 registers.
inline bool at_once(const CometQuantizeArgs& a, int words) {
  const int warps = (a.int4_blocks + a.int8_blocks + words - 1) / words;
  return warps <= kMaxWarps && a.tokens <= kSms * (kMaxWarps / warps);
}

// Few tokens: many warps a token hide latency, as long as no token waits for another. Many: few
// warps with more words each, since the work that a warp does once is what large counts pay for.
template <class T, template <class> class Source, class Options>
int launch_words(const QuantizeParams& p, cudaStream_t stream) {
  const int blocks = p.args.int4_blocks + p.args.int8_blocks;
  if (blocks <= 8 || at_once(p.args, 2)) {
    return launch_instance<T, Source, 2, Options>(p, stream);
  }
  if constexpr (Source<T>::kMaxWords == 24) {
    if (blocks > 8 * kMaxWarps) return launch_instance<T, Source, 24, Options>(p, stream);
  }
  if constexpr (Source<T>::kMaxWords >= 8) {
    if (!at_once(p.args, 4)) return launch_instance<T, Source, 8, Options>(p, stream);
  }
  return launch_instance<T, Source, 4, Options>(p, stream);
}

template <class T, template <class> class Source>
int launch_options(const QuantizeParams& p, cudaStream_t stream) {
  const CometQuantizeArgs& a = p.args;
  if (a.hadamard) return launch_words<T, Source, AnyOptions<true>>(p, stream);
  if (a.mode == kTokenBlockMultiple && a.layout == kSm90 && !a.zero_point && p.vectors) {
    return launch_words<T, Source, FastOptions>(p, stream);
  }
  return launch_words<T, Source, AnyOptions<false>>(p, stream);
}

template <template <class> class Source>
int launch(const CometQuantizeArgs& args, bool vectors, cudaStream_t stream) {
  constexpr int kMost = Source<__half>::kMaxWords;
  const int status = check(args, kMost * max_warps<Source<__half>>(kMost));
  if (status != kCometOk || args.tokens == 0) return status;
  const QuantizeParams p = {args,
                            vectors && aligned(args.x, args.x_stride) && args.channels % 4 == 0};
  if (args.dtype == kFp16) return launch_options<__half, Source>(p, stream);
  return launch_options<__nv_bfloat16, Source>(p, stream);
}

}  // namespace comet
