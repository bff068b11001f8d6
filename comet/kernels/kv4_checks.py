# SPDX-License-Identifier: Apache-2.0
"""What the KV4 operators accept; each refusal names argument, limit and value."""

import math

import torch
from torch import Tensor

from comet.errors import UserError
from comet.formats.kv4 import PAGE, page_bytes
from comet.kernels.checks import check_alignment, check_dtype, check_like, check_tensor

HEAD_DIMS = (64, 128)
MAX_GROUP = 16  # query heads a KV head
ALIGN = 16  # bytes: the kernels copy in pieces of this size


def check_cache(
    cache: Tensor, tail: Tensor, block_tables: Tensor, seq_lens: Tensor, slots: Tensor
) -> None:
    """Check the tensors of a paged cache against each other.

    Raises:
        UserError: a dtype, shape, device, stride or address is not what the kernels read.
    """
    if tail.dim() != 4 or tail.shape[2] != PAGE or tail.shape[3] not in HEAD_DIMS:
        raise UserError(
            f"tail has shape {tuple(tail.shape)}; it must be (slots, kv_heads, {PAGE}, D) with D "
            f"{_either(HEAD_DIMS)}"
        )
    check_dtype("tail is", tail.dtype)
    size = page_bytes(tail.shape[3])
    if cache.dim() != 3 or cache.shape[1:] != (tail.shape[1], size):
        raise UserError(
            f"cache has shape {tuple(cache.shape)}; it must be (pages, {tail.shape[1]}, {size}) "
            f"for a tail of shape {tuple(tail.shape)}"
        )
    if block_tables.dim() != 2:
        raise UserError(
            f"block_tables has shape {tuple(block_tables.shape)}; it must be (batch, max_pages)"
        )
    batch, device = block_tables.shape[0], cache.device
    check_tensor("cache", cache, torch.uint8, tuple(cache.shape), device)
    check_tensor("tail", tail, tail.dtype, tuple(tail.shape), device)
    check_like("block_tables", block_tables, torch.int32, tuple(block_tables.shape), device)
    if block_tables.shape[1] > 1 and block_tables.stride(1) != 1:
        raise UserError(
            f"block_tables has strides {block_tables.stride()}; its rows must be contiguous"
        )
    check_tensor("seq_lens", seq_lens, torch.int32, (batch,), device)
    check_tensor("slots", slots, torch.int32, (batch,), device)
    check_alignment("cache", cache)
    check_alignment("tail", tail)


def check_tokens(
    key: Tensor,
    value: Tensor,
    cache: Tensor,
    tail: Tensor,
    seq_lens: Tensor,
    query_start: Tensor | None,
    max_new_tokens: int,
) -> None:
    """Check new keys and values.

    Raises:
        UserError: as ``check_cache``.
    """
    heads, dim, batch = cache.shape[1], tail.shape[3], seq_lens.shape[0]
    tokens = key.shape[0] if query_start is not None else batch
    for name, tensor in (("key", key), ("value", value)):
        check_like(name, tensor, tail.dtype, (tokens, heads, dim), cache.device)
        _check_strides(name, tensor)
    if query_start is not None:
        check_like("query_start", query_start, torch.int32, (batch + 1,), cache.device)
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")


def check_query(
    query: Tensor,
    cache: Tensor,
    tail: Tensor,
    rows: int | None,
    scale: float,
    window: int | None,
) -> None:
    """Check queries; ``rows`` of them, or any number where it is None.

    Raises:
        UserError: as ``check_cache``.
    """
    kv_heads, dim = cache.shape[1], tail.shape[3]
    if query.dim() != 3:
        raise UserError(f"query has shape {tuple(query.shape)}; it must be (tokens, heads, D)")
    rows = query.shape[0] if rows is None else rows
    check_like("query", query, tail.dtype, (rows, query.shape[1], dim), cache.device)
    _check_strides("query", query)
    heads = query.shape[1]
    if heads % kv_heads or not 0 < heads // kv_heads <= MAX_GROUP:
        raise UserError(
            f"query has {heads} heads; they must be 1 to {MAX_GROUP} times the {kv_heads} KV heads"
        )
    if not 0 < scale < math.inf:
        raise UserError(f"scale is {scale}; it must be positive and finite")
    if window is not None and window < 1:
        raise UserError(f"window is {window}; it must be at least 1, or None")


def check_chunk(
    query_start: Tensor,
    seq_lens: Tensor,
    max_new_tokens: int,
    max_seq_len: int,
    block_tables: Tensor,
) -> None:
    """Check how a chunk is cut into sequences.

    Raises:
        UserError: as ``check_cache``.
    """
    check_like("query_start", query_start, torch.int32, (seq_lens.shape[0] + 1,), seq_lens.device)
    limit = block_tables.shape[1] * PAGE
    if not 0 < max_new_tokens <= max_seq_len <= limit:
        raise UserError(
            f"max_new_tokens is {max_new_tokens} and max_seq_len {max_seq_len}; they must be at "
            f"least 1, in this order, and at most the {limit} tokens of block_tables"
        )


def check_rows(starts: Tensor, tokens: int, seq_lens: Tensor) -> None:
    """Check where a batch's restored tokens go.

    Raises:
        UserError: as ``check_cache``.
    """
    check_tensor("starts", starts, torch.int32, (seq_lens.shape[0],), seq_lens.device)
    if tokens < 0:
        raise UserError(f"tokens is {tokens}; it must be at least 0")


def _check_strides(name: str, tensor: Tensor) -> None:
    """Rows may be strided, heads and channels of a row lie side by side."""
    apart = tensor.stride(0) * tensor.element_size() if tensor.shape[0] > 1 else 0
    if not tensor[:1].is_contiguous() or apart % ALIGN:
        raise UserError(
            f"{name} has strides {tensor.stride()}; it must be contiguous within a token, with "
            f"rows a multiple of {ALIGN} bytes apart"
        )
    check_alignment(name, tensor)


def _either(values: tuple) -> str:
    return " or ".join(map(str, values))
