# SPDX-License-Identifier: Apache-2.0
"""KV4 attention in plain torch: a cache for decoding, and the whole-sequence form of it."""

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from comet.formats.kv4 import (
    PAGE,
    KV4Codes,
    quantize_k_page,
    quantize_v,
    restore_keys,
    restore_values,
)

ROWS_AT_ONCE = 1024


def kv4_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of a whole sequence as a KV4 cache would compute it token by token.

    Token t sees 4-bit keys of every page that is full once t itself is in the cache, 16-bit keys of
    the page that is not, and 4-bit values throughout.

    Args:
        query: [batch, heads, T, D], after RoPE.
        key: [batch, kv_heads, T, D], after RoPE.
        value: [batch, kv_heads, T, D].
        scale: factor of the scores, usually D ** -0.5.
        window: tokens that a query sees (sliding window) or None.

    Returns:
        [batch, heads, T, D] in the type of ``query``.
    """
    return paged_attention(
        query, key, restore_keys(key), restore_values(value), scale, PAGE, window
    )


def paged_attention(
    query: torch.Tensor,
    exact: torch.Tensor,
    stored: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    page: int,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention over keys that are quantized as soon as their page is full.

    Args:
        query: [batch, heads, T, D].
        exact: [batch, kv_heads, T, D], keys as they are while their page is not full.
        stored: [batch, kv_heads, T, D], keys as a full page reads back.
        values: [batch, kv_heads, T, D], values as they read back.
        scale: factor of the scores.
        page: tokens of a page; 1 means that a key is quantized when it is written.
        window: tokens that a query sees (sliding window) or None.

    Returns:
        [batch, heads, T, D] in the type of ``query``.
    """
    batch, heads, tokens, size = query.shape
    kv_heads = exact.shape[1]
    groups = heads // kv_heads
    keys = _Keys(exact.float(), stored.float(), page)
    grouped = query.float().view(batch, kv_heads, groups, tokens, size)
    seen = _seen(tokens, window, query.device)
    how = _page_by_page if query.device.type == "cpu" else _all_scores
    return how(grouped, keys, values.float(), seen, scale).view(query.shape).to(query.dtype)


class _Keys(NamedTuple):
    """What ``paged_attention`` is given, in float32."""

    exact: torch.Tensor
    stored: torch.Tensor
    page: int


def _page_by_page(
    grouped: torch.Tensor, given: _Keys, values: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """The queries [batch, kv_heads, groups, T, D] of a page see the same keys."""
    batch, kv_heads, groups, tokens, size = grouped.shape
    exact, stored, page = given
    out = torch.empty_like(grouped)
    # The token that fills a page sees it sealed already, as the tokens of the next page do.
    ends = [*range(page - 1, tokens, page), tokens] if page > 1 else [tokens]
    first = 0
    for end in ends:
        if first == end:
            continue
        sealed = (first + 1) // page * page if page > 1 else end
        keys = torch.cat((stored[..., :sealed, :], exact[..., sealed:end, :]), dim=-2)
        part = grouped[..., first:end, :].reshape(batch, kv_heads, -1, size)
        mask = seen[first:end, :end].repeat(groups, 1)
        made = scaled_dot_product_attention(
            part, keys, values[..., :end, :], attn_mask=mask, scale=scale
        )
        out[..., first:end, :] = made.view(batch, kv_heads, groups, end - first, size)
        first = end
    return out


def _all_scores(
    grouped: torch.Tensor, given: _Keys, values: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same in few operations: scores with stored keys, and exact ones where a page is open."""
    groups, tokens = grouped.shape[2:4]
    exact, stored, page = given
    out = torch.empty_like(grouped)
    for first in range(0, tokens, ROWS_AT_ONCE):
        end = min(first + ROWS_AT_ONCE, tokens)
        rows = (grouped[..., first:end, :] * scale).flatten(2, 3)
        scores = (rows @ stored[..., :end, :].mT).unflatten(2, (groups, -1))
        start = (first + 1) // page * page
        if page > 1 and start < end:
            position = torch.arange(start, end, device=grouped.device)
            row = torch.arange(first, end, device=grouped.device)[:, None]
            is_open = position >= (row + 1) // page * page
            exact_scores = (rows @ exact[..., start:end, :].mT).unflatten(2, (groups, -1))
            scores[..., start:] = torch.where(is_open, exact_scores, scores[..., start:])
        scores.masked_fill_(~seen[first:end, :end], -torch.inf)
        made = scores.softmax(dim=-1).flatten(2, 3) @ values[..., :end, :]
        out[..., first:end, :] = made.unflatten(2, (groups, -1))
    return out


def _seen(tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Which tokens (columns) each token (row) sees: bool [tokens, tokens]."""
    position = torch.arange(tokens, device=device)
    age = position[:, None] - position
    return age >= 0 if window is None else (age >= 0) & (age < window)


class KV4Cache:
    """The KV4 cache of one sequence and layer: sealed pages in 4 bit, the unfinished page of K in
    16 bit, V in 4 bit.

    Args:
        kv_heads: KV heads.
        head_dim: D.
    """

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self.pages: list[KV4Codes] = []
        self.values: list[KV4Codes] = []
        self.tail = torch.zeros(kv_heads, 0, head_dim)

    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Add one token: key and value [kv_heads, D]; seals the page when it is full."""
        self.tail = torch.cat((self.tail.to(key.dtype), key[:, None]), dim=1)
        self.values.append(quantize_v(value[:, None]))
        if self.tail.shape[1] == PAGE:
            self.pages.append(quantize_k_page(self.tail))
            self.tail = self.tail[:, :0]

    def attend(self, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of one query [heads, D] over the cache, in float64; returns [heads, D]."""
        keys = torch.cat(
            [page.dequantize().double() for page in self.pages] + [self.tail.double()], dim=1
        )
        values = torch.cat([token.dequantize().double() for token in self.values], dim=1)
        groups = query.shape[0] // keys.shape[0]
        keys = keys.repeat_interleave(groups, dim=0)
        values = values.repeat_interleave(groups, dim=0)
        scores = (query.double()[:, None] * scale * keys).sum(dim=-1)
        return (scores.softmax(dim=-1)[..., None] * values).sum(dim=1)
