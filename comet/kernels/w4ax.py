# SPDX-License-Identifier: Apache-2.0
"""The W4Ax linear layer as a torch operator (paper, section 4), exact on every device.

On sm_90a the weight is laid out once as tiles; each call takes the activation operand that
``comet.kernels.activations`` writes. On a CPU the same integers are multiplied in plain torch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from comet.formats.blocks import BLOCK, BlockLayout
from comet.formats.weights import PackedWeight
from comet.kernels import layout_sm90, w4ax_call
from comet.kernels.checks import check_dtype, check_tensors, check_tiled, check_weight
from comet.kernels.operands import ActivationOperand, padded_tokens
from comet.kernels.plan_sm90 import plan_of


@dataclass(frozen=True)
class PreparedWeight:
    """A ``group_int`` weight as the sm_90a kernel reads it.

    Attributes:
        layout: block layout of K.
        tiles: uint8 [N / 64 rounded up, B, 4224], see ``comet.kernels.layout_sm90``.
        channel_scale: fp32 [N].
    """

    layout: BlockLayout
    tiles: Tensor
    channel_scale: Tensor

    @property
    def out_features(self) -> int:
        """N, output channels."""
        return self.channel_scale.shape[0]


def prepare_weight(weight: PackedWeight, device: torch.device | str) -> PreparedWeight:
    """Tile a weight on ``device``; waits until the tiles are there.

    Raises:
        UserError: the weight is not ``group_int``, or N or K is outside the kernel's limits.
    """
    check_weight(weight, ("group_int",))
    fields = [
        t.to(device).contiguous() for t in (weight.codes, weight.group_scale, weight.group_zero)
    ]
    tile = w4ax_call.tile_weights if fields[0].is_cuda else layout_sm90.tile_weights
    return PreparedWeight(weight.layout, tile(*fields), weight.channel_scale.float().to(device))


def w4ax_linear(
    activations: ActivationOperand,
    weight: PreparedWeight,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    dependent_launch: bool = False,
) -> Tensor:
    """Y = X W^T + bias: ``channel_scale * (base * I4 + scale8 * I8) + bias``.

    I4 and I8 are exact integer sums over the INT4 and the INT8 blocks; the rest is fp32 in this
    order, rounded once to ``dtype``. How the work was split changes no bit.

    Args:
        activations: M tokens, layout ``sm90``, mode ``token_block_multiple`` or ``token``.
        weight: N x K.
        bias: fp32 [N] or None.
        dtype: of the result, fp16 or bf16.
        dependent_launch: on sm_90, the plan may fetch weights before the stream's previous kernel
            has ended (programmatic dependent launch). That kernel must not write the weight.

    Returns:
        [M, N] of ``dtype``.

    Raises:
        UserError: an argument is outside its limit; the message names argument, limit and value.
    """
    return _w4ax_linear(
        activations.operand,
        activations.scales,
        activations.sums,
        weight.tiles,
        weight.channel_scale,
        bias,
        weight.layout.int4_blocks,
        dtype,
        dependent_launch,
    )


@torch.library.custom_op("comet::w4ax_linear", mutates_args=())
def _w4ax_linear(
    operand: Tensor,
    scales: Tensor,
    sums: Tensor,
    tiles: Tensor,
    channel_scale: Tensor,
    bias: Tensor | None,
    int4_blocks: int,
    dtype: torch.dtype,
    dependent_launch: bool,
) -> Tensor:
    _check(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, dtype)
    out = operand.new_empty((scales.shape[1], channel_scale.shape[0]), dtype=dtype)
    if out.shape[0] == 0:
        return out
    if operand.is_cpu:
        return _on_cpu(operand, scales, tiles, channel_scale, bias, int4_blocks, dtype)
    plan = plan_of(out.shape[0], out.shape[1], tiles.shape[1], out.device, dependent_launch)
    w4ax_call.w4ax(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, out, plan)
    return out


@_w4ax_linear.register_fake
def _(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, dtype, _dependent_launch):
    _check(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, dtype)
    return operand.new_empty((scales.shape[1], channel_scale.shape[0]), dtype=dtype)


def _on_cpu(operand, scales, tiles, channel_scale, bias, int4_blocks, dtype) -> Tensor:
    x = layout_sm90.unswizzled_rows(operand, scales.shape[1]).int()
    q = layout_sm90.untile_weights(tiles, channel_scale.shape[0]).int()
    split, blocks = int4_blocks * BLOCK, tiles.shape[1]
    y = torch.zeros(x.shape[0], q.shape[0])
    if split > 0:
        y = scales[0][:, None] * (x[:, :split] @ q[:, :split].t()).float()
    if split < blocks * BLOCK:
        y = y + scales[1][:, None] * (x[:, split:] @ q[:, split:].t()).float()
    y = y * channel_scale[None]
    return (y if bias is None else y + bias).to(dtype)


def _check(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, dtype) -> None:
    check_dtype("dtype is", dtype)
    tokens, channels, blocks = check_tiled(layout_sm90, scales, tiles, channel_scale, int4_blocks)
    expected = {
        "operand": (operand, torch.int8, (blocks, padded_tokens(tokens), BLOCK)),
        "scales": (scales, torch.float32, (2, tokens)),
        "sums": (sums, torch.int32, (2, tokens)),
        "tiles": (tiles, torch.uint8, tuple(tiles.shape)),
        "channel_scale": (channel_scale, torch.float32, (channels,)),
        "bias": (bias, torch.float32, (channels,)),
    }
    check_tensors(expected, operand.device)
