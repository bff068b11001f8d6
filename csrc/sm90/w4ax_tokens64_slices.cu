// SPDX-License-Identifier: Apache-2.0
#include "comet/sm90/instances.cuh"

COMET_W4AX_INSTANTIATE(T64k2)
COMET_W4AX_INSTANTIATE(T64k4)
COMET_W4AX_INSTANTIATE(T64k2x2)
