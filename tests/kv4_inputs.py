# SPDX-License-Identifier: Apache-2.0
"""Paged KV4 caches for tests: poisoned, pages in random order, filled by the reference."""

import torch

from comet.formats.kv4 import PAGE, page_bytes
from comet.kernels import kv4_paged
from comet.kernels.kv4_call import CacheState

UNUSED = 2  # tails and pages that belong to nobody


def empty_state(lengths: list[int], head_dim: int, kv_heads: int, dtype, seed=0) -> CacheState:
    """A cache for sequences of these lengths in which every byte is 0xff: NaN as fp16 or bf16."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE) for length in lengths]
    pages = sum(counts) + UNUSED
    order = torch.randperm(pages, generator=generator).int()
    tables = torch.full((len(lengths), max([1, *counts])), -(2**30), dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = order[sum(counts[:row]) :][:count]
    cache = torch.full((pages, kv_heads, page_bytes(head_dim)), 0xFF, dtype=torch.uint8)
    tail = torch.full((len(lengths) + UNUSED, kv_heads, PAGE, head_dim), torch.nan, dtype=dtype)
    slots = torch.randperm(tail.shape[0], generator=generator)[: len(lengths)].int()
    return CacheState(cache, tail, tables, torch.tensor(lengths, dtype=torch.int32), slots)


def random_tokens(tokens: int, heads: int, head_dim: int, dtype, seed=0, outliers=30.0):
    """[tokens, heads, D] with channels of different size, one of them far larger."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, heads, head_dim, generator=generator)
    x = x * torch.linspace(0.1, 3.0, head_dim)
    x[..., 5] *= outliers
    return x.to(dtype)


def starts_of(counts: list[int]) -> torch.Tensor:
    """int32 [sequences + 1]: first row of each sequence's tokens."""
    return torch.tensor([sum(counts[:i]) for i in range(len(counts) + 1)], dtype=torch.int32)


def filled_state(
    lengths: list[int], head_dim: int, kv_heads: int, dtype, seed=0, outliers=30.0
) -> tuple[CacheState, torch.Tensor, torch.Tensor]:
    """``empty_state`` filled by the reference, and the keys and values that are in it."""
    state = empty_state(lengths, head_dim, kv_heads, dtype, seed)
    keys = random_tokens(sum(lengths), kv_heads, head_dim, dtype, seed + 1, outliers)
    values = random_tokens(sum(lengths), kv_heads, head_dim, dtype, seed + 2, 1.0)
    kv4_paged.append(keys, values, *state, starts_of(lengths))
    return state, keys, values


def attention_sink(growth: float) -> tuple[torch.Tensor, CacheState]:
    """Query [1, 2, 64] and bf16 cache of a first token of nearly all the weight and a value of 0:
    small probabilities, times small scales, make the result. Values from token 128 on are
    ``growth`` times as large."""
    state = empty_state([300], 64, 1, torch.bfloat16)
    query, keys, values = (
        random_tokens(tokens, heads, 64, torch.bfloat16, seed, 1.0) / divisor
        for tokens, heads, seed, divisor in ((1, 2, 3, 1), (300, 1, 1, 10), (300, 1, 2, 100))
    )
    first = query[0, 0].float()
    keys[0, 0] = 96 * first / first.square().sum()  # a score of 12
    values[0] = 0
    values[128:] *= growth
    kv4_paged.append(keys, values, *state, starts_of([300]))
    return query, state


def clone(state: CacheState, device="cpu") -> CacheState:
    """A copy on a device."""
    return CacheState(*(tensor.clone().to(device) for tensor in state))


def assert_same_cache(found: CacheState, expected: CacheState) -> None:
    """Pages bit for bit; tails where a sequence has an unfinished page."""
    assert torch.equal(found.cache.cpu(), expected.cache)
    for length, slot in zip(expected.seq_lens.tolist(), expected.slots.tolist(), strict=True):
        rows = slice(0, length % PAGE)
        assert torch.equal(found.tail[slot, :, rows].cpu(), expected.tail[slot, :, rows])


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference of a row over that row's largest magnitude; NaN is an error."""
    difference = (found.cpu().double() - expected).abs().amax(-1)
    error = (difference / expected.abs().amax(-1).clamp(min=1e-30)).amax()
    return float(error) if not error.isnan() else torch.inf
