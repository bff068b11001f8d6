# SPDX-License-Identifier: Apache-2.0
"""Dynamic INT4/INT8 activation quantization by 128-channel blocks (paper, section 3.2).

The paper gives one scale per block and leaves its range and lifetime open. The modes here:

* ``token_block_multiple`` (default): the scale of INT4 block b of token t is ``base[t] * r[t, b]``
  with an integer r, so that ``r * code`` fits int8 and int32 sums run over the whole INT4 part; the
  INT8 part has one scale per token.
* ``token_block``: one fp32 scale per token and block, as the paper's figure 4 reads.
* ``token``: one scale per token and precision (a control).
"""

from dataclasses import dataclass

import torch

from comet.errors import UserError
from comet.formats.blocks import BLOCK, BlockLayout, gather_channels

MODES = ("token_block_multiple", "token_block", "token")
INT4_MAX = 7
INT8_MAX = 127
MAX_MULTIPLE = 18
MAX_MULTIPLE_ZERO_POINT = 8


@dataclass
class QuantizedActivations:
    """Integer activations of M tokens and what scales them.

    Attributes:
        layout: block layout of K.
        mode: one of ``MODES``.
        codes: int8 [M, K padded]; INT4 blocks hold the code (or code minus zero point), INT8
            blocks the 8-bit code.
        multiples: uint8 [M, B4], r of the multiple mode, ones in the other modes.
        base: fp32 [M, B4], scale of an INT4 block before ``multiples``; equal along B4 unless the
            mode is ``token_block``.
        scale8: fp32 [M, B8], scale of an INT8 block; equal along B8 unless ``token_block``.
    """

    layout: BlockLayout
    mode: str
    codes: torch.Tensor
    multiples: torch.Tensor
    base: torch.Tensor
    scale8: torch.Tensor

    def block_scales(self) -> torch.Tensor:
        """fp32 [M, B], the scale of each token and block."""
        return torch.cat((self.base * self.multiples.float(), self.scale8), dim=1)

    def operand(self) -> torch.Tensor:
        """int8 [M, K padded] as the sm_90a kernel multiplies it: INT4 codes already times r."""
        m = self.codes.shape[0]
        multiples = torch.cat((self.multiples, torch.ones_like(self.scale8, dtype=torch.uint8)), 1)
        blocks = self.codes.view(m, -1, BLOCK).to(torch.int16) * multiples[..., None].to(
            torch.int16
        )
        return blocks.to(torch.int8).view(m, -1)

    def dequantize(self) -> torch.Tensor:
        """fp32 [M, K padded] in permuted order: code times scale."""
        blocks = self.codes.view(self.codes.shape[0], -1, BLOCK).float()
        return (blocks * self.block_scales()[..., None]).view(self.codes.shape)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Orthonormal 128-point Walsh-Hadamard transform of each block: [..., 128], fp32 inside.

    Butterflies in the order 1, 2, 4, ... 64, then one multiplication by fp32(1/sqrt(128)); the
    CUDA kernel keeps this order so that both round alike.
    """
    y = x.float().contiguous()
    spare = torch.empty_like(y)
    step = 1
    while step < BLOCK:
        pairs, made = (
            each.view(*x.shape[:-1], BLOCK // (2 * step), 2, step) for each in (y, spare)
        )
        torch.add(pairs[..., 0, :], pairs[..., 1, :], out=made[..., 0, :])
        torch.sub(pairs[..., 0, :], pairs[..., 1, :], out=made[..., 1, :])
        y, spare = spare, (torch.empty_like(y) if step == 1 else y)  # the input is not ours
        step *= 2
    return y * torch.tensor(BLOCK, dtype=torch.float32).rsqrt().to(x.device)


def ordered_activations(
    x: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor, use_hadamard: bool
) -> torch.Tensor:
    """What is quantized: [M, K] as fp32 [M, K padded], permuted, INT4 blocks rotated if so."""
    blocks = gather_channels(x.float(), permutation).view(x.shape[0], layout.blocks, BLOCK)
    if not use_hadamard:
        return blocks.flatten(1)
    rotated = hadamard(blocks[:, : layout.int4_blocks])
    return torch.cat((rotated, blocks[:, layout.int4_blocks :]), dim=1).flatten(1)


def quantize_activations(
    x: torch.Tensor,
    layout: BlockLayout,
    permutation: torch.Tensor | None = None,
    mode: str = "token_block_multiple",
    zero_point: bool = False,
    use_hadamard: bool = False,
) -> QuantizedActivations:
    """Quantize activations by the pinned arithmetic of the W4Ax contract.

    Scales are fp32 by IEEE division, codes ``clamp(rint(x / scale))`` with ties to even. An
    all-zero block has codes 0; an all-zero token has base 1.

    Args:
        x: [M, K] (or [M, K padded] already permuted when ``permutation`` is None), any float type.
        layout: block layout of K.
        permutation: int32 [K padded] or None for channels that are in permuted order already.
        mode: one of ``MODES``.
        zero_point: INT4 blocks get an integer zero point.
        use_hadamard: INT4 blocks are rotated by a 128-point Hadamard first.

    Raises:
        UserError: wrong shape, unknown mode, or a value that is not finite.
    """
    if mode not in MODES:
        raise UserError(f"activation scale mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    values = _blocks(x, layout, permutation)
    part4, part8 = values[:, : layout.int4_blocks], values[:, layout.int4_blocks :]
    if use_hadamard:
        part4 = hadamard(part4)
    quantize4 = _int4_zero_point if zero_point else _int4_symmetric
    codes4, base, multiples = quantize4(part4, mode)
    codes8, scale8 = _int8(part8, mode)
    codes = torch.cat((codes4, codes8), dim=1).flatten(1)
    return QuantizedActivations(layout, mode, codes, multiples, base, scale8)


def _blocks(x: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor | None) -> torch.Tensor:
    """fp32 [M, B, 128] in permuted order."""
    width = layout.padded if permutation is None else layout.channels
    if x.dim() != 2 or x.shape[1] != width:
        raise UserError(f"activations have shape {tuple(x.shape)}, expected (tokens, {width})")
    if x.numel() and not torch.stack(torch.aminmax(x)).isfinite().all():
        raise UserError(
            "activations hold a value that is not finite; check the model and its input"
        )
    ordered = x if permutation is None else gather_channels(x, permutation)
    return ordered.float().view(x.shape[0], layout.blocks, BLOCK)


def _scale_of(size: torch.Tensor, levels: int) -> torch.Tensor:
    """size / levels, 1 where the size is zero."""
    return torch.where(size > 0, size / levels, torch.ones_like(size))


def _round(values: torch.Tensor, scale: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return (values / scale).round().clamp(low, high).to(torch.int8)


def _shared(size: torch.Tensor, mode: str) -> torch.Tensor:
    """Block sizes [M, B] as the mode sees them: each its own, or the token's largest for all."""
    if mode == "token_block" or size.shape[1] == 0:
        return size
    return size.amax(dim=1, keepdim=True).expand_as(size)


def _multiples(size: torch.Tensor, mode: str, limit: int) -> torch.Tensor:
    """r = min(limit, max(1, ceil(limit * size_b / size_max))), ones outside the multiple mode."""
    if mode != "token_block_multiple" or size.shape[1] == 0:
        return torch.ones_like(size)
    largest = size.amax(dim=1, keepdim=True)
    ratio = (limit * size) / torch.where(largest > 0, largest, torch.ones_like(largest))
    return ratio.ceil().clamp(1, limit)


def _int4_symmetric(
    values: torch.Tensor, mode: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    size = values.abs().amax(dim=2)
    multiples = _multiples(size, mode, MAX_MULTIPLE)
    base = _scale_of(_shared(size, mode), INT4_MAX)
    if mode == "token_block_multiple":
        base = torch.where(_shared(size, mode) > 0, base / MAX_MULTIPLE, base)
    codes = _round(values, (base * multiples)[..., None], -INT4_MAX, INT4_MAX)
    return codes, base, multiples.to(torch.uint8)


def _int4_zero_point(
    values: torch.Tensor, mode: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low = values.amin(dim=2).clamp(max=0)
    high = values.amax(dim=2).clamp(min=0)
    if mode == "token" and values.shape[1]:
        low = low.amin(dim=1, keepdim=True).expand_as(low)
        high = high.amax(dim=1, keepdim=True).expand_as(high)
    size = high - low
    multiples = _multiples(size, mode, MAX_MULTIPLE_ZERO_POINT)
    base = _scale_of(_shared(size, mode), 15)
    if mode == "token_block_multiple":
        base = torch.where(_shared(size, mode) > 0, base / MAX_MULTIPLE_ZERO_POINT, base)
    scale = (base * multiples)[..., None]
    zero = (-low[..., None] / scale).round().clamp(0, 15)
    codes = ((values / scale).round() + zero).clamp(0, 15) - zero
    return codes.to(torch.int8), base, multiples.to(torch.uint8)


def _int8(values: torch.Tensor, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    scale = _scale_of(_shared(values.abs().amax(dim=2), mode), INT8_MAX)
    return _round(values, scale[..., None], -INT8_MAX, INT8_MAX), scale
