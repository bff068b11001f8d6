# SPDX-License-Identifier: Apache-2.0
"""The paper-faithful W4Ax linear layer: a scale per token and block, and per channel and group.

Slower than ``comet.kernels.w4ax``, which folds block scales into integers: every 128 products are
scaled on the CUDA cores (paper, section 4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from comet.errors import UserError
from comet.formats.blocks import BLOCK, BlockLayout
from comet.formats.weights import PackedWeight
from comet.kernels import layout_sm90, w4ax_call
from comet.kernels.checks import check_dtype, check_tensors, check_weight
from comet.kernels.operands import ActivationOperand, padded_tokens


@dataclass(frozen=True)
class BlockScaledWeight:
    """A weight with one scale per output channel and group.

    Attributes:
        layout: block layout of K.
        tiles: uint8 [N / 64 rounded up, B, 4224], integers of ``PackedWeight.integers``.
        scales: fp32 [B, N].
    """

    layout: BlockLayout
    tiles: Tensor
    scales: Tensor


def prepare_block_scaled(weight: PackedWeight, device: torch.device | str) -> BlockScaledWeight:
    """Tile a ``group_fp`` or ``group_int`` weight on ``device``; waits until the tiles are there.

    Raises:
        UserError: N or K is outside the kernel's limits.
    """
    check_weight(weight, ("group_fp", "group_int"))
    group_scale = weight.group_scale
    if weight.scale_kind == "group_fp":
        group_scale = torch.ones_like(weight.group_zero)  # the scale is applied in fp32
    fields = [t.to(device).contiguous() for t in (weight.codes, group_scale, weight.group_zero)]
    tile = w4ax_call.tile_weights if fields[0].is_cuda else layout_sm90.tile_weights
    scales = weight.scales().t().contiguous().to(device)
    return BlockScaledWeight(weight.layout, tile(*fields), scales)


def w4ax_linear_block_scaled(
    activations: ActivationOperand,
    weight: BlockScaledWeight,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    dependent_launch: bool = False,
) -> Tensor:
    """Y = X W^T + bias; one fp32 term per block of K, added in the order of K.

    Args:
        activations: M tokens, layout ``sm90``, mode ``token_block``.
        weight: N x K.
        bias: fp32 [N] or None.
        dtype: of the result, fp16 or bf16.
        dependent_launch: start before the stream's previous kernel has ended; that kernel must not
            write the weight.

    Returns:
        [M, N] of ``dtype``, the bits of ``comet.kernels.reference``.

    Raises:
        UserError: an argument is outside its limit; the message names argument, limit and value.
    """
    fields = (activations.operand, activations.scales, activations.sums, weight.tiles)
    return _linear(*fields, weight.scales, bias, dtype, dependent_launch)


@torch.library.custom_op("comet::w4ax_linear_block_scaled", mutates_args=())
def _linear(
    operand: Tensor,
    scales: Tensor,
    sums: Tensor,
    tiles: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    dependent_launch: bool,
) -> Tensor:
    out = _checked_out(operand, scales, sums, tiles, weight_scale, bias, dtype)
    if out.shape[0] == 0:
        return out
    if operand.is_cpu:
        return out.copy_(_on_cpu(operand, scales, tiles, weight_scale, bias))
    fields = (operand, scales, sums, tiles, weight_scale, bias)
    w4ax_call.w4ax_block_scaled(*fields, out, dependent_launch)
    return out


@_linear.register_fake
def _(operand, scales, sums, tiles, weight_scale, bias, dtype, _dependent_launch):
    return _checked_out(operand, scales, sums, tiles, weight_scale, bias, dtype)


def _on_cpu(operand, scales, tiles, weight_scale, bias) -> Tensor:
    x = layout_sm90.unswizzled_rows(operand, scales.shape[1]).int()
    q = layout_sm90.untile_weights(tiles, weight_scale.shape[1]).int()
    y = torch.zeros(x.shape[0], q.shape[0])
    for block in range(tiles.shape[1]):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        total = (x[:, part] @ q[:, part].t()).float()
        y = y + total * scales[block][:, None] * weight_scale[block][None]
    return y if bias is None else y + bias


def _checked_out(operand, scales, sums, tiles, weight_scale, bias, dtype) -> Tensor:
    check_dtype("dtype is", dtype)
    if scales.dim() != 2 or weight_scale.dim() != 2:
        raise UserError(
            f"scales and weight_scale have {scales.dim()} and {weight_scale.dim()} dimensions; "
            "they must be (blocks, tokens) and (blocks, channels)"
        )
    (blocks, tokens), channels = scales.shape, weight_scale.shape[1]
    rows = layout_sm90.tile_rows(channels)
    expected = {
        "operand": (operand, torch.int8, (blocks, padded_tokens(tokens), BLOCK)),
        "scales": (scales, torch.float32, (blocks, tokens)),
        "sums": (sums, torch.int32, (blocks, tokens)),
        "tiles": (tiles, torch.uint8, (rows, blocks, layout_sm90.TILE_BYTES)),
        "weight_scale": (weight_scale, torch.float32, (blocks, channels)),
        "bias": (bias, torch.float32, (channels,)),
    }
    check_tensors(expected, operand.device)
    return operand.new_empty((tokens, channels), dtype=dtype)
