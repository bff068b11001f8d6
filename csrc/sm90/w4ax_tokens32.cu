// SPDX-License-Identifier: Apache-2.0
#include "comet/sm90/instances.cuh"

COMET_W4AX_INSTANTIATE(T32x1)
COMET_W4AX_INSTANTIATE(T32x2)
COMET_W4AX_INSTANTIATE(T32s2)
