// SPDX-License-Identifier: Apache-2.0
// comet-build: allow-spills 32
// In build variants only (comet/kernels/variants.py); tests hold the default library to none.
#include "comet/sm90/instances.cuh"

COMET_W4AX_INSTANTIATE(T128s3)
COMET_W4AX_INSTANTIATE(T128d2)
