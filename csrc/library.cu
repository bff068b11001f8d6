// SPDX-License-Identifier: Apache-2.0
// What every caller of the library needs: its interface version and its errors in words.
#include "comet/status.h"

// Raised whenever an argument struct or a launcher changes; comet.kernels.library checks it.
constexpr int kInterfaceVersion = 2;

COMET_API int comet_interface_version() { return kInterfaceVersion; }

COMET_API const char* comet_error_string(int status) {
  if (status >= kCometCudaBase) {
    return cudaGetErrorString(static_cast<cudaError_t>(status - kCometCudaBase));
  }
  switch (status) {
    case kCometOk:
      return "no error";
    case kCometBadStructSize:
      return "argument struct has another size than the library's: rebuild the library";
    case kCometBadDtype:
      return "dtype is neither fp16 nor bf16";
    case kCometBadShape:
      return "shape is outside what the kernel supports";
    case kCometBadOption:
      return "option has an unknown value or does not go with another option";
    case kCometBadPointer:
      return "pointer is null or not aligned as the kernel needs";
    case kCometUnsupportedDevice:
      return "kernel was not built for the architecture of this GPU";
    default:
      return "unknown status";
  }
}
