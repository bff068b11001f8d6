# SPDX-License-Identifier: Apache-2.0
"""COMET's own kernels: W4Ax, and the control with INT8 activations everywhere (W4A8)."""

import torch

from comet.formats.blocks import BLOCK, BlockLayout
from comet.kernels.activations import quantize_activations
from comet.kernels.layout_sm90 import TILE_BYTES, tile_rows
from comet.kernels.plan_sm90 import plan_of
from comet.kernels.w4ax import PreparedWeight, w4ax_linear
from comet.speed.backends import GemmShape, Unavailable, Workload
from comet.speed.timer import copies_past_l2


def w4ax(shape: GemmShape, device: torch.device) -> Workload:
    """INT4 and INT8 activation blocks as the shape's share says."""
    return _workload(shape, device, round((1 - shape.int4_share) * shape.blocks))


def w4a8(shape: GemmShape, device: torch.device) -> Workload:
    """The same kernel with INT8 blocks only: on Hopper, W4Ax cannot be faster than this."""
    return _workload(shape, device, shape.blocks)


def _workload(shape: GemmShape, device: torch.device, int8_blocks: int) -> Workload:
    if torch.cuda.get_device_capability(device) != (9, 0):
        raise Unavailable("the fast W4Ax kernel runs on compute capability 9.0 (H100, H200) only")
    layout = BlockLayout.of(shape.k, int8_blocks)
    copies = copies_past_l2(shape.n * shape.k // 2, device)
    weights = [_random_weight(shape.n, layout, device) for _ in range(copies)]
    x = torch.randn(shape.m, shape.k, device=device, dtype=torch.bfloat16)
    operand = quantize_activations(x, layout)
    plan = plan_of(shape.m, shape.n, layout.blocks, device, True)

    def quantized(weight: PreparedWeight) -> torch.Tensor:
        fresh = quantize_activations(x, layout, dependent_launch=True)
        return w4ax_linear(fresh, weight, dependent_launch=True)

    return Workload(
        [lambda w=w: w4ax_linear(operand, w, dependent_launch=True) for w in weights],
        [lambda w=w: quantized(w) for w in weights],
        {"copies": copies, "plan": vars(plan), "int8_blocks": int8_blocks},
    )


def _random_weight(n: int, layout: BlockLayout, device: torch.device) -> PreparedWeight:
    """Random bytes are valid tiles, and time does not depend on their values."""
    shape = (tile_rows(n), layout.padded // BLOCK, TILE_BYTES)
    tiles = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
    return PreparedWeight(layout, tiles, torch.rand(n, device=device))
