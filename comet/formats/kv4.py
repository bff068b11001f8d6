# SPDX-License-Identifier: Apache-2.0
"""The 4-bit KV cache: asymmetric INT4 in pages of 64 tokens (paper, sections 3.2 and 6.1).

K, after RoPE, has one scale and zero per channel within a page; the unfinished page stays in
16 bit. V has one scale and zero per token and head. Scale and zero are fp16; a value is restored
as ``code * scale + zero``.
"""

from dataclasses import dataclass

import torch

from comet.formats.packing import pack_int4, unpack_int4

PAGE = 64
LEVELS = 15


@dataclass(frozen=True)
class KV4Codes:
    """Asymmetric INT4 codes with fp16 scale and zero that broadcast against them.

    Attributes:
        packed: uint8 [..., D / 2], two codes a byte along the head dimension.
        scale: fp16, K: [..., 1, D] for the 64 tokens of a page; V: [..., tokens, 1].
        zero: fp16, shaped as ``scale``: the value of code 0.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """fp32 [..., D]."""
        return unpack_int4(self.packed).float() * self.scale.float() + self.zero.float()


def quantize_k_page(keys: torch.Tensor) -> KV4Codes:
    """Quantize whole pages of keys per channel.

    Args:
        keys: [..., 64, D], after RoPE.
    """
    if keys.shape[-2] != PAGE:
        raise ValueError(f"a page holds {PAGE} tokens, got {keys.shape[-2]}")
    return _quantize(keys, dim=-2)


def quantize_v(values: torch.Tensor) -> KV4Codes:
    """Quantize values per token and head: [..., tokens, D]."""
    return _quantize(values, dim=-1)


def _quantize(x: torch.Tensor, dim: int) -> KV4Codes:
    x = x.float()
    low, high = x.amin(dim=dim, keepdim=True), x.amax(dim=dim, keepdim=True)
    scale = ((high - low) / LEVELS).to(torch.float16)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    zero = low.to(torch.float16)
    codes = ((x - zero.float()) / scale.float()).round().clamp(0, LEVELS)
    return KV4Codes(pack_int4(codes.to(torch.uint8)), scale, zero)


def restore_keys(keys: torch.Tensor) -> torch.Tensor:
    """What [..., tokens, D] keys read back as; an unfinished last page is unchanged."""
    sealed = keys.shape[-2] // PAGE * PAGE
    pages = keys[..., :sealed, :].unflatten(-2, (-1, PAGE))
    restored = quantize_k_page(pages).dequantize().flatten(-3, -2).to(keys.dtype)
    return torch.cat((restored, keys[..., sealed:, :]), dim=-2)


def restore_values(values: torch.Tensor) -> torch.Tensor:
    """What [..., tokens, D] values read back as."""
    return quantize_v(values).dequantize().to(values.dtype)


def page_bytes(head_dim: int) -> int:
    """Bytes of one page and KV head: K and V codes, K scale and zero, V scale and zero."""
    return 2 * PAGE * head_dim // 2 + 4 * head_dim + 4 * PAGE
