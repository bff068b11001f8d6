// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments and the table of instances.
#include "comet/sm90/instances.cuh"

COMET_W4AX_INSTANCES(COMET_W4AX_EXTERN)

namespace comet::sm90 {
namespace {

struct Entry {
  CometW4axInstance description;
  int (*launch)(const CometW4axArgs&, cudaStream_t);
};

#define COMET_W4AX_ENTRY(name) {describe<name>(#name), launch_w4ax<name>},
const Entry kEntries[] = {COMET_W4AX_INSTANCES(COMET_W4AX_ENTRY)};
#undef COMET_W4AX_ENTRY
constexpr int kCount = sizeof(kEntries) / sizeof(kEntries[0]);

bool aligned(const void* pointer, uintptr_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

int check(const CometW4axArgs& a) {
  if (a.size != sizeof(CometW4axArgs)) return kCometBadStructSize;
  if (a.dtype != kFp16 && a.dtype != kBf16) return kCometBadDtype;
  if (a.tokens < 1 || a.channels < 8 || a.channels % 8 != 0) return kCometBadShape;
  if (a.int4_blocks < 0 || a.int8_blocks < 0) return kCometBadShape;
  // int32 sums: 128 * |q| <= 128 * |x| <= 127 a block must stay below 2^31.
  if (a.int4_blocks + a.int8_blocks < 1 || a.int4_blocks + a.int8_blocks > 1024) {
    return kCometBadShape;
  }
  if (a.instance < 0 || a.instance >= kCount) return kCometBadOption;
  for (const void* pointer : {a.activations, a.weights, static_cast<const void*>(a.out)}) {
    if (!aligned(pointer, 16)) return kCometBadPointer;
  }
  for (const void* pointer : {static_cast<const void*>(a.scales), static_cast<const void*>(a.sums),
                              static_cast<const void*>(a.channel_scale)}) {
    if (!aligned(pointer, 4)) return kCometBadPointer;
  }
  return kCometOk;
}

}  // namespace
}  // namespace comet::sm90

COMET_API int comet_capture_id(cudaStream_t stream, uint64_t* id) {
  cudaStreamCaptureStatus status;
  unsigned long long found = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &found);
  *id = status == cudaStreamCaptureStatusActive ? found : 0;
  return comet::cuda_status(error);
}

COMET_API int comet_w4ax_instances() { return comet::sm90::kCount; }

COMET_API int comet_w4ax_instance(int index, CometW4axInstance* instance) {
  if (index < 0 || index >= comet::sm90::kCount) return kCometBadOption;
  *instance = comet::sm90::kEntries[index].description;
  return kCometOk;
}

COMET_API int comet_w4ax_sm90(const CometW4axArgs* args, cudaStream_t stream) {
  const int status = comet::sm90::check(*args);
  if (status != kCometOk) return status;
  return comet::sm90::kEntries[args->instance].launch(*args, stream);
}
