# SPDX-License-Identifier: Apache-2.0
"""The sm_80 W4Ax kernel, natively on Ampere, through its PTX on what is newer."""

import torch

from comet.formats.blocks import BLOCK, BlockLayout
from comet.kernels.activations import quantize_activations
from comet.kernels.layout_sm80 import TILE_BYTES, tile_rows
from comet.kernels.library import load_for
from comet.kernels.variants import using
from comet.kernels.w4ax_sm80 import PreparedWeightSm80, w4ax_linear_sm80
from comet.kernels.w4ax_sm80_call import instances
from comet.speed.backends import GemmShape, Unavailable, Unsupported, Workload
from comet.speed.backends.comet import built_variant
from comet.speed.timer import copies_past_l2

CAUTION = (
    "the sm_80 kernel through compute_80 PTX on compute capability {}.{}: the GPU emulates or "
    "re-schedules what the kernel is made for, the time says nothing about an A100"
)


def w4ax(shape: GemmShape, device: torch.device) -> Workload:
    """INT4 blocks on the 4-bit tensor cores, INT8 blocks on the 8-bit ones, default mode only."""
    if (shape.act_scale, shape.weight_scale) != ("token_block_multiple", "group_int"):
        raise Unsupported("the sm_80 kernel is timed in its default mode only")
    library = built_variant(shape.variant)
    with using(library):
        loaded = load_for(device)
        if "80" not in loaded.architectures:
            raise Unavailable(f"{library} has no sm_80 code; build it with: comet build --arch 80")
        interleaved = instances(loaded)[0].interleaved
    layout = BlockLayout.of(shape.k, round((1 - shape.int4_share) * shape.blocks))
    copies = copies_past_l2(shape.n * shape.k // 2, device)
    weights = [_random_weight(shape.n, layout, interleaved, device) for _ in range(copies)]
    x = torch.randn(shape.m, shape.k, device=device, dtype=torch.bfloat16)
    operand = quantize_activations(x, layout, layout="sm80")

    def call(weight: PreparedWeightSm80) -> torch.Tensor:
        with using(library):
            return w4ax_linear_sm80(operand, weight, dtype=torch.bfloat16)

    capability = torch.cuda.get_device_capability(device)
    details = {"copies": copies, "kernel": "sm_80"}
    if capability != (8, 0):
        details["caution"] = CAUTION.format(*capability)
    return Workload([lambda w=w: call(w) for w in weights], details=details)


def _random_weight(
    n: int, layout: BlockLayout, interleaved: bool, device: torch.device
) -> PreparedWeightSm80:
    """Random bytes are valid tiles, and time does not depend on their values."""
    shape = (tile_rows(n), layout.padded // BLOCK, TILE_BYTES)
    tiles = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
    return PreparedWeightSm80(layout, tiles, torch.rand(n, device=device), interleaved)
