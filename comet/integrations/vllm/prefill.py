# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt chunks: 16-bit values for a flash kernel, earlier tokens from the cache."""

from dataclasses import dataclass

import torch

from comet.kernels.kv4 import kv4_unpack

# Tokens whose K and V are restored to 16 bit at a time.
WORKSPACE_TOKENS = 65536


@dataclass(frozen=True)
class ChunkGroup:
    """Rows that one call of the flash kernel serves.

    Attributes:
        rows: of the prefill part of the batch.
        tokens: of the prefill part of the batch.
        query_start, key_start: int32 [rows + 1], first query and first key of each row.
        key_tokens: tokens of the whole sequences.
        max_query_len, max_seq_len: largest chunk and largest length.
        place: int64 [tokens of the group], row in the workspace of each new token's K and V; None
            where no row has earlier tokens, so that nothing is read from the cache.
    """

    rows: slice
    tokens: slice
    query_start: torch.Tensor
    key_start: torch.Tensor
    key_tokens: int
    max_query_len: int
    max_seq_len: int
    place: torch.Tensor | None


def plan_prefill(
    query_start: torch.Tensor, seq_lens: torch.Tensor, device: torch.device
) -> tuple[ChunkGroup, ...]:
    """Cut the prefill rows of a batch into groups whose keys fit the workspace.

    Rows that begin a prompt stand apart from those that continue one, whose earlier tokens have to
    be restored first.

    Args:
        query_start: int32 [rows + 1] on the CPU, first token of each row in the batch.
        seq_lens: int32 [rows] on the CPU, lengths with the chunk.
        device: where the kernels run.

    Returns:
        The groups in the order of rows.
    """
    starts = (query_start - query_start[0]).tolist()
    lengths = seq_lens.tolist()
    continues = [
        length != end - start
        for length, start, end in zip(lengths, starts[:-1], starts[1:], strict=True)
    ]
    groups, first, total = [], 0, 0
    for row, length in enumerate(lengths):
        full = total + length > WORKSPACE_TOKENS
        if row > first and (full or continues[row] != continues[first]):
            groups.append(_group(first, row, starts, lengths, continues[first], device))
            first, total = row, 0
        total += length
    groups.append(_group(first, len(lengths), starts, lengths, continues[first], device))
    return tuple(groups)


def _group(
    first: int,
    last: int,
    starts: list[int],
    lengths: list[int],
    continues: bool,
    device: torch.device,
) -> ChunkGroup:
    own = torch.tensor(lengths[first:last])
    key_start = torch.nn.functional.pad(own.cumsum(0), (1, 0))
    query_start = torch.tensor(starts[first : last + 1]) - starts[first]
    counts = query_start.diff()

    def there(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype).to(device, non_blocking=True)

    place = None
    if continues:
        # A chunk is the end of its sequence.
        shift = key_start[1:] - query_start[1:]
        place = torch.arange(int(query_start[-1])) + shift.repeat_interleave(counts)
        place = there(place, torch.int64)
    return ChunkGroup(
        slice(first, last),
        slice(starts[first], starts[last]),
        there(query_start, torch.int32),
        there(key_start, torch.int32),
        int(key_start[-1]),
        int(counts.max()),
        int(own.max()),
        place,
    )


def attend_to_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: tuple[torch.Tensor, ...],
    groups: tuple[ChunkGroup, ...],
    scale: float,
    out: torch.Tensor,
) -> None:
    """Causal attention of the chunks of a batch.

    Args:
        query: [tokens, heads, D], the prefill tokens.
        key, value: [tokens, kv_heads, D], theirs, in 16 bit.
        state: cache, tail, block tables, lengths and slots of the prefill rows
            (``comet.kernels.kv4``), the chunks appended already.
        groups: of ``plan_prefill``.
        scale: factor of the scores.
        out: as ``query``, written.
    """
    for group in groups:
        k, v = key[group.tokens], value[group.tokens]
        if group.place is not None:
            k, v = _with_context(k, v, state, group)
        flash_attention(query[group.tokens], k, v, group, scale, out[group.tokens])


def _with_context(
    key: torch.Tensor, value: torch.Tensor, state: tuple[torch.Tensor, ...], group: ChunkGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole sequences: earlier tokens as the cache holds them, the chunk as it came.

    A chunk's own tokens stay exact here as they do in a prompt that begins.
    """
    cache, tail, *tables = state
    keys, values = kv4_unpack(
        cache,
        tail,
        *(table[group.rows] for table in tables),
        group.key_start[:-1].contiguous(),
        group.key_tokens,
    )
    keys.index_copy_(0, group.place, key.contiguous())
    values.index_copy_(0, group.place, value.contiguous())
    return keys, values


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: ChunkGroup,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Causal attention of sequences of different lengths; queries are the ends of sequences."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version

    flash_attn_varlen_func(
        q=query,
        k=key,
        v=value,
        max_seqlen_q=group.max_query_len,
        cu_seqlens_q=group.query_start,
        max_seqlen_k=group.max_seq_len,
        cu_seqlens_k=group.key_start,
        softmax_scale=scale,
        causal=True,
        out=out,
        fa_version=get_flash_attn_version(head_size=query.shape[-1]),
    )
