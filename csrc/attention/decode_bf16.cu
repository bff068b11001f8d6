// SPDX-License-Identifier: Apache-2.0
#include "comet/attention/launch.cuh"

namespace comet::kv4 {
COMET_KV4_DECODE_INSTANCES(, Bf16)
}
