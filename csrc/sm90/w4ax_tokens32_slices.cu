// SPDX-License-Identifier: Apache-2.0
#include "comet/sm90/instances.cuh"

COMET_W4AX_INSTANTIATE(T32k4)
COMET_W4AX_INSTANTIATE(T32k2x2)
