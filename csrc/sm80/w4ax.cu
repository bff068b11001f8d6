// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments and the table of instances.
#include "comet/sm80/launch.cuh"

COMET_W4AX_SM80_EXTERN(T16)
COMET_W4AX_SM80_EXTERN(T32)
COMET_W4AX_SM80_EXTERN(T64)
COMET_W4AX_SM80_EXTERN(T128)

namespace comet::sm80 {
namespace {

struct Entry {
  CometW4axSm80Instance description;
  int (*launch)(const CometW4axSm80Args&, cudaStream_t);
};

const Entry kEntries[] = {{describe<T16>("T16"), launch_w4ax<T16>},
                          {describe<T32>("T32"), launch_w4ax<T32>},
                          {describe<T64>("T64"), launch_w4ax<T64>},
                          {describe<T128>("T128"), launch_w4ax<T128>}};
constexpr int kCount = sizeof(kEntries) / sizeof(kEntries[0]);

bool aligned(const void* pointer, uintptr_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

int check(const CometW4axSm80Args& a) {
  if (a.size != sizeof(CometW4axSm80Args)) return kCometBadStructSize;
  if (a.dtype != kFp16 && a.dtype != kBf16) return kCometBadDtype;
  if (a.tokens < 1 || a.channels < 8 || a.channels % 8 != 0) return kCometBadShape;
  if (a.int4_blocks < 0 || a.int8_blocks < 0) return kCometBadShape;
  // int32 sums: 128 * |q| <= 128 * |x| <= 127 a block must stay below 2^31.
  const int blocks = a.int4_blocks + a.int8_blocks;
  if (blocks < 1 || blocks > 1024) return kCometBadShape;
  if (a.instance < 0 || a.instance >= kCount) return kCometBadOption;
  for (const void* pointer : {a.activations, a.weights, static_cast<const void*>(a.out)}) {
    if (!aligned(pointer, 16)) return kCometBadPointer;
  }
  if (!aligned(a.scales, 4) || !aligned(a.channel_scale, 4)) return kCometBadPointer;
  if (a.int4_blocks > 0 && a.multiples == nullptr) return kCometBadPointer;
  return kCometOk;
}

}  // namespace
}  // namespace comet::sm80

COMET_API int comet_w4ax_sm80_instances() { return comet::sm80::kCount; }

COMET_API int comet_w4ax_sm80_instance(int index, CometW4axSm80Instance* instance) {
  if (index < 0 || index >= comet::sm80::kCount) return kCometBadOption;
  *instance = comet::sm80::kEntries[index].description;
  return kCometOk;
}

COMET_API int comet_w4ax_sm80(const CometW4axSm80Args* args, cudaStream_t stream) {
  if (args == nullptr) return kCometBadStructSize;
  const int status = comet::sm80::check(*args);
  if (status != kCometOk) return status;
  return comet::sm80::kEntries[args->instance].launch(*args, stream);
}
