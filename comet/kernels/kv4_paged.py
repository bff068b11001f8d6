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
        length = int(seq_lens[sequence])
        if length == 0:
            continue
        slot = int(slots[sequence])
        for position in range(length - count, length):
            row = first + position - (length - count)
            page = int(block_tables[sequence, position // PAGE])
            tail[slot, :, position % PAGE] = key[row]
            _write_value(cache, page, position % PAGE, value[row])
            if position % PAGE == PAGE - 1:
                _seal(cache, page, tail[slot])


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


def _write_value(cache: Tensor, page: int, row: int, value: Tensor) -> None:
    head_dim = value.shape[-1]
    keys, values = unpack_page(cache[page], head_dim)
    new = quantize_v(value[:, None])
    for old, part in (
        (values.packed, new.packed),
        (values.scale, new.scale),
        (values.zero, new.zero),
    ):
        old[:, row] = part[:, 0]
    cache[page] = pack_page(keys, values)


def _seal(cache: Tensor, page: int, rows: Tensor) -> None:
    _, values = unpack_page(cache[page], rows.shape[-1])
    cache[page] = pack_page(quantize_k_page(rows), values)
