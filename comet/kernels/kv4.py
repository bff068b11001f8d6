# SPDX-License-Identifier: Apache-2.0
"""Attention over a paged 4-bit KV cache as torch operators (paper, sections 3.2 and 6.1).

A layer's cache is two tensors. ``cache`` uint8 [pages, kv_heads, page_bytes] holds pages of 64
tokens (``comet.formats.kv4``); ``block_tables`` name the pages of each sequence as vLLM does, and
sequences may share pages. ``tail`` [slots, kv_heads, 64, D] holds, in 16 bit, the keys of the page
that a sequence has not filled yet; each sequence owns one slot. On a CPU the same operators run
through the float64 reference.

No operator waits for the GPU or depends on a length that only the GPU knows, so that CUDA graphs
capture them.
"""

import torch
from torch import Tensor

from comet.kernels import kv4_call, kv4_paged
from comet.kernels.checks import check_tensor
from comet.kernels.kv4_call import CacheState
from comet.kernels.kv4_checks import (
    check_cache,
    check_chunk,
    check_query,
    check_rows,
    check_tokens,
)
from comet.kernels.plan_kv4 import Plan


def kv4_append(
    key: Tensor,
    value: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    query_start: Tensor | None = None,
    max_new_tokens: int = 1,
    dependent_launch: bool = False,
) -> None:
    """Quantize new tokens into the cache; writes ``cache`` and ``tail``.

    V is quantized into its page at once, K goes to the tail; a page of K that becomes full is
    quantized. Afterwards ``decode`` and ``prefill`` see the new tokens.

    Args:
        key, value: [tokens, kv_heads, D], fp16 or bf16, keys after RoPE; rows may be strided.
        cache: uint8 [pages, kv_heads, page_bytes(D)], D 64 or 128.
        tail: [slots, kv_heads, 64, D] of ``key``'s type.
        block_tables: int32 [batch, max_pages], page of each 64 tokens of a sequence; entries
            beyond its length are not read.
        seq_lens: int32 [batch], lengths including the new tokens; 0: the row is skipped.
        slots: int32 [batch], the tail of each sequence.
        query_start: int32 [batch + 1], first row of each sequence's new tokens; None: one token a
            sequence, in row b.
        max_new_tokens: at least the largest number of new tokens of a sequence.
        dependent_launch: on sm_90, the kernel may start before the stream's previous one has ended
            (programmatic dependent launch), which then must not write any of the integers.

    Raises:
        UserError: an argument is outside its limit; the message names argument, limit and value.
    """
    _kv4_append(
        key, value, cache, tail, block_tables, seq_lens, slots, query_start, max_new_tokens,
        dependent_launch,
    )  # fmt: skip


def kv4_decode(
    query: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    scale: float | None = None,
    window: int | None = None,
    plan: Plan | None = None,
    dependent_launch: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one token a sequence over its cache, the token itself included.

    Args:
        query: [batch, heads, D] of ``tail``'s type, after RoPE; heads a multiple of kv_heads, at
            most 16 times as many.
        cache, tail, block_tables, seq_lens, slots: as ``kv4_append``.
        scale: factor of the scores; None for D ** -0.5.
        window: tokens that a query sees (sliding window); None for all.
        plan: how the kernel is launched; None for ``plan_kv4.plan_of``.
        dependent_launch: as ``kv4_append``.
        out: contiguous, of ``query``'s shape and type; written and returned. None: a new one.

    Returns:
        [batch, heads, D] of ``query``'s type; zeros for a sequence of length 0. The same lengths
        and plan give the same bits.

    Raises:
        UserError: as ``kv4_append``.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    launch = [] if plan is None else plan.as_list()
    options = float(scale), window, launch, dependent_launch
    if out is None:
        return _kv4_decode(query, cache, tail, block_tables, seq_lens, slots, *options)
    _kv4_decode_into(out, query, cache, tail, block_tables, seq_lens, slots, *options)
    return out


def kv4_prefill(
    query: Tensor,
    query_start: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    max_new_tokens: int,
    max_seq_len: int,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Causal attention of a chunk of tokens over the cache that they were appended to.

    The cache is restored to 16 bit and given to ``scaled_dot_product_attention``; sealed pages
    read back as 4 bit, also those that the chunk itself filled.

    Args:
        query: [tokens, heads, D].
        query_start: int32 [batch + 1], first row of each sequence's chunk.
        cache, tail, block_tables, seq_lens, slots: as ``kv4_append``, after it.
        max_new_tokens, max_seq_len: at least the largest chunk and the largest length.
        scale, window: as ``kv4_decode``.

    Returns:
        [tokens, heads, D] of ``query``'s type; rows outside every chunk are undefined.

    Raises:
        UserError: as ``kv4_append``.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _kv4_prefill(
        query, query_start, cache, tail, block_tables, seq_lens, slots,
        max_new_tokens, max_seq_len, float(scale), window,
    )  # fmt: skip


def kv4_unpack(
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    starts: Tensor,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    """Restore a batch's K and V to 16 bit, for a flash kernel.

    Args:
        cache, tail, block_tables, seq_lens, slots: as ``kv4_append``.
        starts: int32 [batch], row of each sequence's first token in the result.
        tokens: rows of the result.

    Returns:
        K and V [tokens, kv_heads, D] of ``tail``'s type; zeros where no sequence lies.

    Raises:
        UserError: as ``kv4_append``.
    """
    return _kv4_unpack(cache, tail, block_tables, seq_lens, slots, starts, tokens)


@torch.library.custom_op("comet::kv4_append", mutates_args=("cache", "tail"))
def _kv4_append(
    key: Tensor,
    value: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    query_start: Tensor | None,
    max_new_tokens: int,
    dependent_launch: bool,
) -> None:
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_tokens(key, value, cache, tail, seq_lens, query_start, max_new_tokens)
    if key.shape[0] == 0 or seq_lens.shape[0] == 0:
        return
    state = CacheState(cache, tail, block_tables, seq_lens, slots)
    if cache.is_cpu:
        kv4_paged.append(key, value, *state, query_start)
    else:
        kv4_call.append(key, value, state, query_start, max_new_tokens, dependent_launch)


@_kv4_append.register_fake
def _(
    key, value, cache, tail, block_tables, seq_lens, slots,
    query_start, max_new_tokens, _dependent_launch,
):  # fmt: skip
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_tokens(key, value, cache, tail, seq_lens, query_start, max_new_tokens)


@torch.library.custom_op("comet::kv4_decode", mutates_args=())
def _kv4_decode(
    query: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    scale: float,
    window: int | None,
    plan: list[int],
    dependent_launch: bool,
) -> Tensor:
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_query(query, cache, tail, seq_lens.shape[0], scale, window)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    state = CacheState(cache, tail, block_tables, seq_lens, slots)
    _decode(out, query, state, scale, window, plan, dependent_launch)
    return out


@_kv4_decode.register_fake
def _(query, cache, tail, block_tables, seq_lens, slots, scale, window, _plan, _dependent):
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_query(query, cache, tail, seq_lens.shape[0], scale, window)
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


@torch.library.custom_op("comet::kv4_decode_into", mutates_args=("out",))
def _kv4_decode_into(
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    scale: float,
    window: int | None,
    plan: list[int],
    dependent_launch: bool,
) -> None:
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_query(query, cache, tail, seq_lens.shape[0], scale, window)
    check_tensor("out", out, query.dtype, query.shape, query.device)
    state = CacheState(cache, tail, block_tables, seq_lens, slots)
    _decode(out, query, state, scale, window, plan, dependent_launch)


@_kv4_decode_into.register_fake
def _(out, query, cache, tail, block_tables, seq_lens, slots, scale, window, _plan, _dependent):
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_query(query, cache, tail, seq_lens.shape[0], scale, window)
    check_tensor("out", out, query.dtype, query.shape, query.device)


def _decode(
    out: Tensor,
    query: Tensor,
    state: CacheState,
    scale: float,
    window: int | None,
    plan: list[int],
    dependent_launch: bool,
) -> None:
    if out.numel() == 0:
        return
    if out.is_cpu:
        out.copy_(kv4_paged.decode(query, *state, scale, window))
        return
    launch = Plan(*plan) if plan else None
    kv4_call.decode(query, state, scale, window, out, launch, dependent_launch)


@torch.library.custom_op("comet::kv4_unpack", mutates_args=())
def _kv4_unpack(
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    starts: Tensor,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_rows(starts, tokens, seq_lens)
    state = CacheState(cache, tail, block_tables, seq_lens, slots)
    if cache.is_cpu:
        return kv4_paged.unpack(*state, starts, tokens)
    keys, values = (tail.new_zeros((tokens, cache.shape[1], tail.shape[3])) for _ in range(2))
    if tokens > 0 and seq_lens.shape[0] > 0:
        kv4_call.unpack(state, starts, keys, values)
    return keys, values


@_kv4_unpack.register_fake
def _(cache, tail, block_tables, seq_lens, slots, starts, tokens):
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_rows(starts, tokens, seq_lens)
    shape = (tokens, cache.shape[1], tail.shape[3])
    return tail.new_empty(shape), tail.new_empty(shape)


@torch.library.custom_op("comet::kv4_prefill", mutates_args=())
def _kv4_prefill(
    query: Tensor,
    query_start: Tensor,
    cache: Tensor,
    tail: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    max_new_tokens: int,
    max_seq_len: int,
    scale: float,
    window: int | None,
) -> Tensor:
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_query(query, cache, tail, None, scale, window)
    check_chunk(query_start, seq_lens, max_new_tokens, max_seq_len, block_tables)
    batch, kv_heads, dim = seq_lens.shape[0], cache.shape[1], query.shape[2]
    if query.numel() == 0 or batch == 0:
        return torch.empty_like(query)
    device = query.device
    starts = torch.arange(batch, dtype=torch.int32, device=device) * max_seq_len
    keys, values = _kv4_unpack(
        cache, tail, block_tables, seq_lens, slots, starts, batch * max_seq_len
    )
    keys, values = (
        t.view(batch, max_seq_len, kv_heads, dim).transpose(1, 2) for t in (keys, values)
    )
    step = torch.arange(max_new_tokens, device=device)
    first, counts = query_start[:-1].long(), query_start.diff()
    rows = (first[:, None] + step).clamp(max=query.shape[0] - 1)
    groups = query.shape[1] // kv_heads
    # The query heads of a KV head stand beside each other: no copy of K and V for each of them.
    padded = query[rows].transpose(1, 2).unflatten(1, (kv_heads, groups)).flatten(2, 3)
    position = (seq_lens - counts)[:, None] + step
    token = torch.arange(max_seq_len, device=device)
    seen = token <= position[..., None]
    if window is not None:
        seen &= token > position[..., None] - window
    seen = seen[:, None, None].expand(-1, 1, groups, -1, -1).flatten(2, 3)
    found = torch.nn.functional.scaled_dot_product_attention(
        padded, keys, values, attn_mask=seen, scale=scale
    )
    found = found.unflatten(2, (groups, max_new_tokens)).flatten(1, 2).transpose(1, 2)
    row = torch.arange(query.shape[0], device=device)
    sequence = torch.searchsorted(query_start[1:].contiguous(), row.int(), right=True)
    sequence = sequence.clamp(max=batch - 1)
    return found[sequence, (row - first[sequence]).clamp(0, max_new_tokens - 1)].contiguous()


@_kv4_prefill.register_fake
def _(
    query, query_start, cache, tail, block_tables, seq_lens, slots,
    max_new_tokens, max_seq_len, scale, window,
):  # fmt: skip
    check_cache(cache, tail, block_tables, seq_lens, slots)
    check_query(query, cache, tail, None, scale, window)
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)
