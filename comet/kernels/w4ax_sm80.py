# SPDX-License-Identifier: Apache-2.0
"""The W4Ax linear layer on Ampere (paper, section 4) as a torch operator, exact on every device.

INT4 blocks are multiplied by the 4-bit tensor cores, INT8 blocks by the 8-bit ones, in one kernel
(``csrc/sm80``). The activation operand is that of layout ``sm80``, whose INT4 blocks hold symmetric
4-bit codes: activations with a zero point need five bits and are refused by
``comet.kernels.activations``. On a CPU the same integers are multiplied in plain torch.

GPUs newer than sm_80 run the kernel through its PTX. Hopper has no 4-bit tensor cores and emulates
them: results are the same, times say nothing about Ampere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from comet.formats.blocks import BLOCK, BlockLayout
from comet.formats.packing import unpack_int4
from comet.formats.weights import PackedWeight
from comet.kernels import layout_sm80, w4ax_sm80_call
from comet.kernels.checks import (
    check_alignment,
    check_dtype,
    check_tensors,
    check_tiled,
    check_weight,
)
from comet.kernels.operands import ActivationOperand


@dataclass(frozen=True)
class PreparedWeightSm80:
    """A ``group_int`` weight as the sm_80 kernel reads it.

    Attributes:
        layout: block layout of K.
        tiles: uint8 [N / 128 rounded up, B, 8448], see ``comet.kernels.layout_sm80``.
        channel_scale: fp32 [N].
        interleaved: order of the codes in ``tiles``.
    """

    layout: BlockLayout
    tiles: Tensor
    channel_scale: Tensor
    interleaved: bool = True

    @property
    def out_features(self) -> int:
        """N, output channels."""
        return self.channel_scale.shape[0]


def prepare_weight_sm80(
    weight: PackedWeight, device: torch.device | str, interleaved: bool = True
) -> PreparedWeightSm80:
    """Tile a weight on ``device``.

    Args:
        weight: N x K.
        device: where the GEMM runs.
        interleaved: False for the build variant without the interleaved layout.

    Raises:
        UserError: the weight is not ``group_int``, or N or K is outside the kernel's limits.
    """
    check_weight(weight, ("group_int",))
    fields = [t.to(device) for t in (weight.codes, weight.group_scale, weight.group_zero)]
    tiles = layout_sm80.tile_weights(*fields, weight.layout.int4_blocks, interleaved)
    channel_scale = weight.channel_scale.float().to(device).contiguous()
    return PreparedWeightSm80(weight.layout, tiles, channel_scale, interleaved)


def w4ax_linear_sm80(
    activations: ActivationOperand,
    weight: PreparedWeightSm80,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """Y = X W^T + bias: ``channel_scale * (base * I4 + scale8 * I8) + bias``.

    I4 and I8 are exact integer sums over the INT4 and the INT8 blocks; the rest is fp32 in this
    order, rounded once to ``dtype``. How the work was split changes no bit.

    Args:
        activations: M tokens, layout ``sm80``, mode ``token_block_multiple`` or ``token``.
        weight: N x K.
        bias: fp32 [N] or None.
        dtype: of the result, fp16 or bf16.

    Returns:
        [M, N] of ``dtype``.

    Raises:
        UserError: an argument is outside its limit; the message names argument, limit and value.
    """
    return _w4ax_linear_sm80(
        activations.operand,
        activations.scales,
        activations.multiples,
        weight.tiles,
        weight.channel_scale,
        bias,
        weight.layout.int4_blocks,
        weight.interleaved,
        dtype,
    )


@torch.library.custom_op("comet::w4ax_linear_sm80", mutates_args=())
def _w4ax_linear_sm80(
    operand: Tensor,
    scales: Tensor,
    multiples: Tensor,
    tiles: Tensor,
    channel_scale: Tensor,
    bias: Tensor | None,
    int4_blocks: int,
    interleaved: bool,
    dtype: torch.dtype,
) -> Tensor:
    _check(operand, scales, multiples, tiles, channel_scale, bias, int4_blocks, dtype)
    out = operand.new_empty((scales.shape[1], channel_scale.shape[0]), dtype=dtype)
    if out.shape[0] == 0:
        return out
    fixed = (operand, scales, multiples, tiles, channel_scale, bias, int4_blocks, interleaved)
    if operand.is_cpu:
        return _on_cpu(*fixed).to(dtype)
    w4ax_sm80_call.w4ax(*fixed, out)
    return out


@_w4ax_linear_sm80.register_fake
def _(operand, scales, multiples, tiles, channel_scale, bias, int4_blocks, _interleaved, dtype):
    _check(operand, scales, multiples, tiles, channel_scale, bias, int4_blocks, dtype)
    return operand.new_empty((scales.shape[1], channel_scale.shape[0]), dtype=dtype)


def _on_cpu(
    operand, scales, multiples, tiles, channel_scale, bias, int4_blocks, interleaved
) -> Tensor:
    split = int4_blocks * BLOCK // 2
    q = layout_sm80.untile_weights(tiles, channel_scale.shape[0], int4_blocks, interleaved).int()
    codes = unpack_int4(operand[:, :split]).view(operand.shape[0], int4_blocks, BLOCK).int()
    codes = (codes ^ 8) - 8
    int4 = (codes * multiples[:, :, None].int()).flatten(1) @ q[:, : 2 * split].t()
    int8 = operand[:, split:].view(torch.int8).int() @ q[:, 2 * split :].t()
    y = scales[0][:, None] * int4.float() + scales[1][:, None] * int8.float()
    y = y * channel_scale[None]
    return y if bias is None else y + bias


def _check(operand, scales, multiples, tiles, channel_scale, bias, int4_blocks, dtype) -> None:
    check_dtype("dtype is", dtype)
    tokens, channels, blocks = check_tiled(layout_sm80, scales, tiles, channel_scale, int4_blocks)
    row_bytes = int4_blocks * BLOCK // 2 + (blocks - int4_blocks) * BLOCK
    expected = {
        "operand": (operand, torch.uint8, (tokens, row_bytes)),
        "scales": (scales, torch.float32, (2, tokens)),
        "multiples": (multiples, torch.uint8, (tokens, int4_blocks)),
        "tiles": (tiles, torch.uint8, tuple(tiles.shape)),
        "channel_scale": (channel_scale, torch.float32, (channels,)),
        "bias": (bias, torch.float32, (channels,)),
    }
    check_tensors(expected, operand.device)
    check_alignment("operand", operand)
    check_alignment("tiles", tiles)
