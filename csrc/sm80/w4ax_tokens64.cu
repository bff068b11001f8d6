// SPDX-License-Identifier: Apache-2.0
#include "comet/sm80/launch.cuh"

COMET_W4AX_SM80_INSTANTIATE(T64)
