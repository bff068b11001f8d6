// SPDX-License-Identifier: Apache-2.0
// Status codes of the C interface, shared by every launcher.
#pragma once

#include <cuda_runtime_api.h>

#define COMET_API extern "C" __attribute__((visibility("default")))

// 0 is success, values below kCometCudaBase are refusals of the launcher itself, values from
// kCometCudaBase on are cudaError_t + kCometCudaBase. comet_error_string() puts them into words.
enum CometStatus : int {
  kCometOk = 0,
  kCometBadStructSize = 1,
  kCometBadDtype = 2,
  kCometBadShape = 3,
  kCometBadOption = 4,
  kCometBadPointer = 5,
  kCometUnsupportedDevice = 6,
  kCometCudaBase = 1000,
};

namespace comet {

inline int cuda_status(cudaError_t error) {
  return error == cudaSuccess ? kCometOk : kCometCudaBase + static_cast<int>(error);
}

// Status of the launch just made; also clears a non-sticky error so that it is reported once.
inline int launch_status() { return cuda_status(cudaGetLastError()); }

}  // namespace comet
