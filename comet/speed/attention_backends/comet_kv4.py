# SPDX-License-Identifier: Apache-2.0
"""COMET's KV4 attention, and the append of the new token beside it."""

import torch

from comet.formats.kv4 import PAGE, page_bytes
from comet.kernels.kv4 import kv4_append, kv4_decode
from comet.kernels.kv4_cache import PagedKV4Cache
from comet.kernels.plan_kv4 import plan_of
from comet.speed.attention_backends import AttentionShape, random_block_table
from comet.speed.backends import Workload
from comet.speed.timer import copies_past_l2

# A graph holds 64 steps of each.
MOST_POOLS = 24


def kv4(shape: AttentionShape, device: torch.device) -> Workload:
    """Decode from sealed pages with random codes, pages of 64 tokens in random order.

    Launches overlap (programmatic dependent launch) where the GPU can; ``time_without_overlap`` is
    the same without. ``append_time`` is the mean of 64 steps in turn, one of which seals a page; it
    is left out where the tails of so small a batch would stay in the L2 cache.
    """
    pages = -(-shape.context // PAGE)
    size = shape.batch * pages * shape.kv_heads * page_bytes(shape.head_dim)
    copies = copies_past_l2(size, device)
    query = shape.query(device)
    plan = plan_of(shape.batch, shape.kv_heads, shape.head_dim, pages, device, shape.group)
    batches = []
    for seed in range(copies):
        cache = PagedKV4Cache(
            shape.batch * pages,
            shape.kv_heads,
            shape.head_dim,
            shape.batch,
            shape.context,
            device=device,
        )
        batches.append(cache.batch(cache.fill_random([shape.context] * shape.batch, seed)))
    return Workload(
        [lambda b=b: kv4_decode(query, *b, dependent_launch=True) for b in batches],
        {"time_without_overlap": [lambda b=b: kv4_decode(query, *b) for b in batches]}
        | _appends(shape, device),
        {"copies": copies, "page": PAGE, "plan": vars(plan), "dependent_launch": True},
    )


def _appends(shape: AttentionShape, device: torch.device) -> dict[str, list]:
    """64 steps of each of several pools, step by step; a pool holds only what an append touches."""
    copies = copies_past_l2(2 * shape.batch * shape.kv_heads * PAGE * shape.head_dim, device)
    if copies > MOST_POOLS:
        return {}
    first, last = shape.context // PAGE, (shape.context + PAGE - 1) // PAGE
    tail_shape = (shape.batch, shape.kv_heads, PAGE, shape.head_dim)
    options = {"device": device, "dtype": torch.bfloat16}
    slots = torch.arange(shape.batch, device=device, dtype=torch.int32)
    tables = torch.zeros(shape.batch, last + 1, device=device, dtype=torch.int32)
    used = last + 1 - first
    tables[:, first:] = random_block_table(shape.batch, used, device)
    key, value = (
        torch.randn(shape.batch, shape.kv_heads, shape.head_dim, **options) for _ in range(2)
    )
    pools = [
        (
            torch.zeros(
                shape.batch * used,
                shape.kv_heads,
                page_bytes(shape.head_dim),
                device=device,
                dtype=torch.uint8,
            ),
            torch.randn(tail_shape, **options),
        )
        for _ in range(copies)
    ]
    lengths = [
        torch.full((shape.batch,), shape.context + step + 1, device=device, dtype=torch.int32)
        for step in range(PAGE)
    ]
    steps = [
        lambda p=pool, n=now: kv4_append(key, value, *p, tables, n, slots, dependent_launch=True)
        for now in lengths
        for pool in pools
    ]
    return {"append_time": steps}
