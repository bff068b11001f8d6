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
  if (args == nullptr || args->size != sizeof(CometW4axArgs)) return kCometBadStructSize;
  const int status = comet::sm90::check(*args);
  if (status != kCometOk) return status;
  if (args->instance < 0 || args->instance >= comet::sm90::kCount) return kCometBadOption;
  return comet::sm90::kEntries[args->instance].launch(*args, stream);
}
