# SPDX-License-Identifier: Apache-2.0
"""COMET's own kernels: W4Ax, and the control with INT8 activations everywhere (W4A8).

Launches overlap (programmatic dependent launch) except in ``time_without_overlap``. ``time``
has its quantized operands ready. Two metrics are taken for each way to quantize that the layer
has, which are ``quantization`` of 16-bit activations, ``norm_quantization`` fused behind
RMSNorm (qkv, gate_up) and ``silu_quantization`` fused behind SiLU times up (down):

- ``<way>_time``: the quantization kernel alone;
- ``time_with_<way>``: it and the GEMM after it.
"""

from collections.abc import Callable

import torch

from comet.formats.blocks import BLOCK, BlockLayout
from comet.kernels.activations import quantize_activations, rmsnorm_quantize, silu_quantize
from comet.kernels.layout_sm90 import TILE_BYTES, tile_rows
from comet.kernels.operands import ActivationOperand
from comet.kernels.plan_sm90 import plan_of
from comet.kernels.quantization_call import MAX_CHANNELS, MAX_CHANNELS_NORM, MAX_CHANNELS_SILU
from comet.kernels.variants import FULL, using, variant_path
from comet.kernels.w4ax import PreparedWeight, w4ax_linear
from comet.kernels.w4ax_block_scaled import BlockScaledWeight, w4ax_linear_block_scaled
from comet.speed.backends import GemmShape, Unavailable, Unsupported, Workload
from comet.speed.timer import copies_past_l2

BEHIND_NORM = ("qkv", "gate_up")
BEHIND_SILU = ("down",)


def w4ax(shape: GemmShape, device: torch.device) -> Workload:
    """INT4 and INT8 activation blocks as the shape's share says."""
    return _workload(shape, device, round((1 - shape.int4_share) * shape.blocks))


def w4a8(shape: GemmShape, device: torch.device) -> Workload:
    """The same kernel with INT8 blocks only: on Hopper, W4Ax cannot be faster than this."""
    return _workload(shape, device, shape.blocks)


def _workload(shape: GemmShape, device: torch.device, int8_blocks: int) -> Workload:
    if torch.cuda.get_device_capability(device) != (9, 0):
        raise Unavailable("the fast W4Ax kernel runs on compute capability 9.0 (H100, H200) only")
    if shape.k > MAX_CHANNELS:
        raise Unsupported(
            f"the quantizer takes at most {MAX_CHANNELS} input channels, not {shape.k}"
        )
    layout = BlockLayout.of(shape.k, int8_blocks)
    block_scaled = _is_block_scaled(shape)
    make, linear = (
        (_block_scaled_weight, w4ax_linear_block_scaled)
        if block_scaled
        else (_integer_weight, w4ax_linear)
    )
    copies = copies_past_l2(shape.n * shape.k // 2, device)
    weights = [make(shape.n, layout, device) for _ in range(copies)]
    ways = _quantizations(shape, layout, device)
    operand = ways["quantization"]()
    details = {"copies": copies, "int8_blocks": int8_blocks, "kernel": "sm_90a"}
    if not block_scaled:
        size = (shape.m, shape.n, layout.blocks, device)
        details["plan"] = vars(plan_of(*size, True))
        details["plan_without_overlap"] = vars(plan_of(*size, False))
    if shape.variant != FULL:
        return _variant_workload(shape, weights, operand, details)
    besides = {"time_without_overlap": [lambda w=w: linear(operand, w) for w in weights]}
    for way, quantize in ways.items():
        besides[f"time_with_{way}"] = [
            lambda w=w, q=quantize: linear(q(), w, dependent_launch=True) for w in weights
        ]
        besides[f"{way}_time"] = [quantize]
    calls = [lambda w=w: linear(operand, w, dependent_launch=True) for w in weights]
    return Workload(calls, besides, details)


def _is_block_scaled(shape: GemmShape) -> bool:
    """Whether each block has scales of its own on both sides, which another kernel computes."""
    block, group = shape.act_scale == "token_block", shape.weight_scale == "group_fp"
    if block != group:
        raise Unsupported(
            f"no kernel takes act_scale {shape.act_scale} with weight_scale {shape.weight_scale}; "
            "token_block goes with group_fp, the others with group_int"
        )
    return block


def _variant_workload(shape: GemmShape, weights, operand, details: dict) -> Workload:
    """The GEMM alone from the library of a build variant; plans are those of the full kernel."""
    library = built_variant(shape.variant)

    def call(weight: PreparedWeight) -> torch.Tensor:
        with using(library):
            return w4ax_linear(operand, weight, dependent_launch=True)

    return Workload([lambda w=w: call(w) for w in weights], details=details)


def built_variant(name: str):
    """The library of a variant.

    Raises:
        Unavailable: it was not built.
    """
    path = variant_path(name)
    if not path.exists():
        raise Unavailable(f"{path} does not exist; build it with: comet build --variants")
    return path


def _quantizations(
    shape: GemmShape, layout: BlockLayout, device: torch.device
) -> dict[str, Callable[[], ActivationOperand]]:
    """Ways to quantize random activations, by name; inputs are shared and stay in the L2 cache."""
    x, up = (torch.randn(shape.m, shape.k, device=device, dtype=torch.bfloat16) for _ in range(2))
    order = torch.randperm(shape.k, device=device, dtype=torch.int32)
    padding = torch.full((layout.padded - shape.k,), -1, device=device, dtype=torch.int32)
    how = {
        "permutation": torch.cat((order, padding)),
        "mode": shape.act_scale,
        "zero_point": shape.zero_point,
        "hadamard": shape.hadamard,
        "dependent_launch": True,
    }
    ways = {"quantization": lambda: quantize_activations(x, layout, **how)}
    if shape.layer in BEHIND_NORM and shape.k <= MAX_CHANNELS_NORM:
        gain = torch.rand(shape.k, device=device, dtype=torch.bfloat16)
        ways["norm_quantization"] = lambda: rmsnorm_quantize(
            x, gain, 1e-5, layout, residual=up, **how
        )[0]
    if shape.layer in BEHIND_SILU and shape.k <= MAX_CHANNELS_SILU:
        ways["silu_quantization"] = lambda: silu_quantize(x, up, layout, **how)
    return ways


def _random_tiles(n: int, layout: BlockLayout, device: torch.device) -> torch.Tensor:
    """Random bytes are valid tiles, and time does not depend on their values."""
    shape = (tile_rows(n), layout.padded // BLOCK, TILE_BYTES)
    return torch.randint(0, 256, shape, device=device, dtype=torch.uint8)


def _integer_weight(n: int, layout: BlockLayout, device: torch.device) -> PreparedWeight:
    return PreparedWeight(layout, _random_tiles(n, layout, device), torch.rand(n, device=device))


def _block_scaled_weight(n: int, layout: BlockLayout, device: torch.device) -> BlockScaledWeight:
    scales = torch.rand(layout.blocks, n, device=device)
    return BlockScaledWeight(layout, _random_tiles(n, layout, device), scales)
