# SPDX-License-Identifier: Apache-2.0
"""Activation operands as the GEMM kernels read them, built from the reference's codes."""

from typing import NamedTuple

import torch

from comet.formats.activations import QuantizedActivations
from comet.formats.blocks import BLOCK
from comet.formats.packing import pack_int4

TOKEN_ALIGN = 8
CHUNK = 16
LAYOUTS = ("rows", "sm90", "sm80")


class ActivationOperand(NamedTuple):
    """Quantized activations of M tokens in B blocks of which the first B4 are INT4.

    Attributes:
        operand: ``rows``: int8 [M, Kp], codes as the reference holds them.
            ``sm90``: int8 [B, M rounded up to 8, 128]; INT4 blocks hold r * code; the 16-byte
            chunks of row m are permuted by XOR with m & 7; padding rows are zero.
            ``sm80``: uint8 [M, 64 * B4 + 128 * B8]; the INT4 blocks as nibbles (two's
            complement, even channel low), then the INT8 codes. Not with zero points.
        scales: fp32 [2, M], base and INT8 scale of each token; [B, M] in mode ``token_block``.
        sums: int32 [2, M], sums over the INT4 part (of r * code) and the INT8 part; [B, M] in mode
            ``token_block``.
        multiples: uint8 [M, B4], r; empty for ``sm90``.
    """

    operand: torch.Tensor
    scales: torch.Tensor
    sums: torch.Tensor
    multiples: torch.Tensor


def padded_tokens(tokens: int) -> int:
    """M rounded up to the whole row groups of the sm_90a operand."""
    return (tokens + TOKEN_ALIGN - 1) // TOKEN_ALIGN * TOKEN_ALIGN


def operand_of(quantized: QuantizedActivations, layout: str) -> ActivationOperand:
    """Lay out what the reference quantized; ``layout`` is one of ``LAYOUTS``."""
    if layout == "sm90":
        operand = swizzled_blocks(quantized.operand())
        multiples = quantized.multiples.new_empty(0)
    elif layout == "sm80":
        operand, multiples = _nibble_rows(quantized), quantized.multiples
    else:
        operand, multiples = quantized.codes, quantized.multiples
    return ActivationOperand(operand, _scales(quantized), _sums(quantized), multiples)


def swizzled_blocks(rows: torch.Tensor) -> torch.Tensor:
    """int8 [M, Kp] to the sm_90a operand int8 [Kp / 128, M rounded up to 8, 128]."""
    tokens, channels = rows.shape
    padded = rows.new_zeros(padded_tokens(tokens), channels)
    padded[:tokens] = rows
    chunks = padded.view(-1, channels // BLOCK, BLOCK // CHUNK, CHUNK).transpose(0, 1)
    row = torch.arange(chunks.shape[1], device=rows.device)[:, None]
    source = torch.arange(BLOCK // CHUNK, device=rows.device)[None] ^ (row & (TOKEN_ALIGN - 1))
    index = source[None, :, :, None].expand(chunks.shape)
    return chunks.gather(2, index).reshape(chunks.shape[0], -1, BLOCK)


def _nibble_rows(quantized: QuantizedActivations) -> torch.Tensor:
    split = quantized.layout.int4_channels
    packed = pack_int4(quantized.codes[:, :split] & 15)
    return torch.cat((packed, quantized.codes[:, split:].contiguous().view(torch.uint8)), dim=1)


def _scales(quantized: QuantizedActivations) -> torch.Tensor:
    if quantized.mode == "token_block":
        return quantized.block_scales().t().contiguous()
    ones = torch.ones(quantized.codes.shape[0], 1, device=quantized.codes.device)
    base = torch.cat((quantized.base, ones), dim=1)[:, 0]
    return torch.stack((base, torch.cat((quantized.scale8, ones), dim=1)[:, 0]))


def _sums(quantized: QuantizedActivations) -> torch.Tensor:
    tokens = quantized.codes.shape[0]
    blocks = quantized.operand().view(tokens, -1, BLOCK).sum(2, dtype=torch.int32)
    if quantized.mode == "token_block":
        return blocks.t().contiguous()
    split = quantized.layout.int4_blocks
    parts = (blocks[:, :split].sum(1), blocks[:, split:].sum(1))
    return torch.stack(parts).to(torch.int32)
