# SPDX-License-Identifier: Apache-2.0
"""Exact W4Ax linear layer in plain torch: the yardstick of every kernel.

Products of one 128-channel block are summed in float32, which is exact: every partial sum is an
integer below 2^24 (127 * 128 * 128 = 2,080,768).
"""

import torch

from comet.formats.activations import QuantizedActivations
from comet.formats.blocks import BLOCK
from comet.formats.weights import PackedWeight


def block_sums(codes: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
    """Exact integer dot products of each block.

    Args:
        codes: int8 [M, K padded].
        integers: int16 [N, K padded], |value| <= 255.

    Returns:
        int32 [B, M, N].
    """
    blocks = codes.shape[1] // BLOCK
    x = codes.view(-1, blocks, BLOCK).transpose(0, 1).float()
    w = integers.view(-1, blocks, BLOCK).permute(1, 2, 0).float()
    return torch.bmm(x, w).to(torch.int32)


def w4ax_integer_parts(
    activations: QuantizedActivations, weight: PackedWeight
) -> tuple[torch.Tensor, torch.Tensor]:
    """I4 and I8 of the default mode: int32 [M, N] each, exact.

    I4 sums multiple * code * q over the INT4 blocks, I8 sums code * q over the INT8 blocks.
    """
    b4 = activations.layout.int4_blocks
    sums = block_sums(activations.codes, weight.integers())
    multiples = activations.multiples.to(torch.int32).t()[:, :, None]
    int4_part = (sums[:b4] * multiples).sum(dim=0, dtype=torch.int32)
    int8_part = sums[b4:].sum(dim=0, dtype=torch.int32)
    return int4_part, int8_part


def w4ax_linear_reference(
    activations: QuantizedActivations,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Y = X W^T + bias from quantized activations and weights.

    The default mode adds two exact int32 parts in fp32, in the order of the contract:
    ``channel_scale * (base * I4 + scale8 * I8) + bias``. The other modes add one fp32 term a block.

    Args:
        activations: M tokens of K channels.
        weight: N x K.
        bias: [N] or None.
        dtype: type of the result.

    Returns:
        [M, N] of ``dtype``.
    """
    exact = activations.mode == "token_block_multiple" and weight.scale_kind == "group_int"
    y = _two_parts(activations, weight) if exact else _block_by_block(activations, weight)
    if bias is not None:
        y = y + bias.float()
    return y.to(dtype)


def _two_parts(activations: QuantizedActivations, weight: PackedWeight) -> torch.Tensor:
    int4_part, int8_part = w4ax_integer_parts(activations, weight)
    y = torch.zeros(int4_part.shape, dtype=torch.float32, device=int4_part.device)
    if activations.layout.int4_blocks:
        y = activations.base[:, :1] * int4_part.float()
    if activations.layout.int8_blocks:
        y = y + activations.scale8[:, :1] * int8_part.float()
    return y * weight.channel_scale[None, :]


def _block_by_block(activations: QuantizedActivations, weight: PackedWeight) -> torch.Tensor:
    sums = block_sums(activations.codes, weight.integers())
    token_scales = activations.block_scales().t()[:, :, None]
    channel_scales = weight.scales().t()[:, None, :]
    y = torch.zeros(sums.shape[1:], dtype=torch.float32, device=sums.device)
    for block in range(sums.shape[0]):
        y = y + sums[block].float() * token_scales[block] * channel_scales[block]
    return y
