# SPDX-License-Identifier: Apache-2.0
"""The paged KV4 cache in plain torch: what the kernels compute, exact, on any device.

Arguments are those of the operators in ``comet.kernels.kv4``; loops over sequences and pages are
plain Python.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from comet.formats.kv4 import (
    PAGE,
    KV4Codes,
    pack_page,
    quantize_k_page,
    quantize_v,
    unpack_page,
)


def append(
    key: Tensor,
    value: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    query_start: Tensor | None,
) -> None:
    """``kv4.kv4_append``: V to its page at once, K to the tail, whole pages of K sealed."""
    for sequence, (first, count) in enumerate(_rows(seq_lens, query_start)):
        length, slot = int(seq_lens[sequence]), int(slots[sequence])
        start = length - count if length else 0
        for number in range(start // PAGE, -(-length // PAGE)):
            begin, end = max(start, number * PAGE), min(length, (number + 1) * PAGE)
            new = slice(first + begin - start, first + end - start)
            rows = slice(begin - number * PAGE, end - number * PAGE)
            page = cache[int(block_tables[sequence, number])]
            tail[slot, :, rows] = key[new].transpose(0, 1)
            _write(
                page, rows, value[new].transpose(0, 1), tail[slot] if rows.stop == PAGE else None
            )


def decode(
    query: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """``kv4.kv4_decode`` in float64: [batch, heads, D]; zeros for an empty sequence."""
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    groups = query.shape[1] // cache.shape[1]
    for sequence in range(query.shape[0]):
        length = int(seq_lens[sequence])
        if length == 0:
            continue
        k, v = restored(cache, tail, block_tables[sequence], length, int(slots[sequence]))
        first = max(0, length - window) if window is not None else 0
        k, v = (t[:, first:].double().repeat_interleave(groups, dim=0) for t in (k, v))
        scores = (query[sequence].double()[:, None] * scale * k).sum(dim=-1)
        out[sequence] = (scores.softmax(dim=-1)[..., None] * v).sum(dim=1)
    return out


def unpack(
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    starts: Tensor,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    """``kv4.kv4_unpack``: K and V [tokens, kv_heads, D], zeros where no sequence lies."""
    shape = (tokens, cache.shape[1], tail.shape[3])
    keys, values = (torch.zeros(shape, dtype=tail.dtype, device=cache.device) for _ in range(2))
    for sequence in range(seq_lens.shape[0]):
        length, start = int(seq_lens[sequence]), int(starts[sequence])
        if length == 0:
            continue
        restored_kv = restored(cache, tail, block_tables[sequence], length, int(slots[sequence]))
        for out, part in zip((keys, values), restored_kv, strict=True):
            out[start : start + length] = part.transpose(0, 1).to(out.dtype)
    return keys, values


def restored(
    cache: Tensor, tail: Tensor, table: Tensor, length: int, slot: int
) -> tuple[Tensor, Tensor]:
    """K and V of one sequence as the cache holds them, fp32 [kv_heads, length, D]."""
    pages = cache[table[: -(-length // PAGE)].long()].transpose(0, 1)
    keys, values = unpack_page(pages, tail.shape[3])
    sealed, rest = divmod(length, PAGE)
    whole = KV4Codes(*(t[:, :sealed] for t in (keys.packed, keys.scale, keys.zero)))
    k = torch.cat((whole.dequantize().flatten(1, 2), tail[slot, :, :rest].float()), dim=1)
    return k, values.dequantize().flatten(1, 2)[:, :length]


def _rows(seq_lens: Tensor, query_start: Tensor | None) -> Iterator[tuple[int, int]]:
    """First row of each sequence's new tokens, and how many there are."""
    for sequence in range(seq_lens.shape[0]):
        if query_start is None:
            yield sequence, 1
        else:
            first, end = query_start[sequence : sequence + 2].tolist()
            yield first, end - first


def _write(page: Tensor, rows: slice, values: Tensor, full: Tensor | None) -> None:
    """Write values [kv_heads, rows, D] into a page of every KV head, and seal its keys ``full``."""
    keys, old = unpack_page(page, values.shape[-1])
    new = quantize_v(values)
    for name in ("packed", "scale", "zero"):
        getattr(old, name)[:, rows] = getattr(new, name)
    page.copy_(pack_page(keys if full is None else quantize_k_page(full), old))
