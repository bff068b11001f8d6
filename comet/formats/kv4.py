# SPDX-License-Identifier: Apache-2.0
"""The 4-bit KV cache: asymmetric INT4 in pages of 64 tokens (paper, sections 3.2 and 6.1).

K, after RoPE, has one scale and zero per channel within a page; the unfinished page stays in
16 bit. V has one scale and zero per token and head. Scale and zero are fp16; a value is restored
as ``code * scale + zero``.

``pack_page`` writes the bytes of one page and KV head as the kernels read them: K codes, K scale,
K zero, V codes, V scale, V zero. The order of the codes is that of the tensor cores' operands, so
that a thread's 16 bytes are four of its fragments (csrc/include/comet/attention/page.cuh).
"""

import math
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
    zero = (low + 0.0).to(torch.float16)  # -0 becomes 0
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


def pack_page(keys: KV4Codes, values: KV4Codes) -> torch.Tensor:
    """The bytes of pages as the kernels read them.

    Args:
        keys: of ``quantize_k_page``: packed [..., 64, D / 2], D a multiple of 64.
        values: of ``quantize_v`` for the same 64 tokens.

    Returns:
        uint8 [..., page_bytes(D)].
    """
    k, v = unpack_int4(keys.packed), unpack_int4(values.packed)
    parts = (
        pack_int4(_permuted(k, _K_PARTS, _K_ORDER)),
        _bytes(keys.scale.squeeze(-2)),
        _bytes(keys.zero.squeeze(-2)),
        pack_int4(_permuted(v, _V_PARTS, _V_ORDER)),
        _bytes(values.scale.squeeze(-1)),
        _bytes(values.zero.squeeze(-1)),
    )
    return torch.cat(parts, dim=-1)


def unpack_page(page: torch.Tensor, head_dim: int) -> tuple[KV4Codes, KV4Codes]:
    """Inverse of ``pack_page``: K and V of uint8 [..., page_bytes(D)].

    Every bit is kept, also of parts that were never written.
    """
    codes, vector, tokens = PAGE * head_dim // 2, 2 * head_dim, 2 * PAGE
    k, k_scale, k_zero, v, v_scale, v_zero = page.split(
        (codes, vector, vector, codes, tokens, tokens), dim=-1
    )
    keys = _restored(unpack_int4(k), head_dim, _K_PARTS, _K_ORDER)
    values = _restored(unpack_int4(v), head_dim, _V_PARTS, _V_ORDER)
    return (
        KV4Codes(pack_int4(keys), _halves(k_scale).unsqueeze(-2), _halves(k_zero).unsqueeze(-2)),
        KV4Codes(pack_int4(values), _halves(v_scale).unsqueeze(-1), _halves(v_zero).unsqueeze(-1)),
    )


# Tokens are 16 t + 4 s + 2 h + b everywhere: s is the tile of 16 tokens, 2 t + b + 8 h the place in
# it. A byte holds two codes and four bytes a thread's part of one 16 x 16 operand tile.
# K, tokens are rows: channels are 32 j + 8 t' + 4 u + 2 k + i; tile 2 j + u, place 2 t' + i + 8 k.
_K_PARTS = ((4, 4, 2, 2), (-1, 4, 2, 2, 2))  # t s h b, j t' u k i
_K_ORDER = (4, 6, 0, 3, 5, 1, 8, 7, 2)  # j u t b t' s i k h
# V, channels are rows: channels are (D / 8) g + 8 q + 2 w + r; tile 4 q + w, row g + 8 r.
_V_PARTS = ((4, 4, 2, 2), (8, -1, 4, 2))  # t s h b, g q w r
_V_ORDER = (1, 5, 4, 0, 6, 3, 2, 7)  # s q g t w b h r


def _permuted(codes: torch.Tensor, parts: tuple, order: tuple) -> torch.Tensor:
    """[..., 64, D] codes in the order of the page, [..., 64 * D]."""
    split = codes.unflatten(-1, parts[1]).unflatten(-1 - len(parts[1]), parts[0])
    lead = split.dim() - len(order)
    return split.permute(*range(lead), *(lead + axis for axis in order)).flatten(lead)


def _restored(codes: torch.Tensor, head_dim: int, parts: tuple, order: tuple) -> torch.Tensor:
    """Inverse of ``_permuted``."""
    rest = head_dim // -math.prod(parts[1])
    sizes = [rest if size == -1 else size for size in (*parts[0], *parts[1])]
    split = codes.unflatten(-1, [sizes[axis] for axis in order])
    lead = split.dim() - len(order)
    back = sorted(range(len(order)), key=order.__getitem__)
    natural = split.permute(*range(lead), *(lead + axis for axis in back))
    return natural.flatten(lead + len(parts[0])).flatten(lead, lead + len(parts[0]) - 1)


def _bytes(halves: torch.Tensor) -> torch.Tensor:
    return halves.to(torch.float16).contiguous().view(torch.uint8)


def _halves(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.float16)
