# SPDX-License-Identifier: Apache-2.0
"""How KV4 decode attention is cut into thread blocks.

Every thread block takes an equal run of the batch's pages, whatever the lengths are; within it,
warps take pages in turn, each with its own ring of pages under way. Only shapes decide, so that a
plan is the same at capture and at replay of a CUDA graph. ``plan_kv4_table.TABLE`` holds what was
measured fastest (``comet.speed.tune_kv4``); the rules below serve what is not in it.
"""

import math
from dataclasses import astuple, dataclass
from functools import cache

import torch

from comet.formats.kv4 import page_bytes
from comet.kernels.plan_kv4_table import TABLE

# Bytes of shared memory: of an SM, and the most of one thread block.
SHARED = {(9, 0): (228 * 1024, 227 * 1024), (8, 0): (164 * 1024, 163 * 1024)}
SMALLEST_SHARED = (100 * 1024, 99 * 1024)
BLOCK_RESERVE = 1024  # that the system takes of each thread block
BARRIER_BYTES = 8  # beside each page under way
WORDS_BYTES = 13 * 4  # of a thread block
MAX_STAGES = 8
NEAR = 2  # between the table's lengths and batches, which are powers of four
LEAST_FILL = 0.8  # share of the thread blocks that could run, worth giving up for even parts


@dataclass(frozen=True)
class Plan:
    """One launch of decode attention.

    Attributes:
        warps: of a thread block, 1 to 12 (1 to 8 for more than 8 query heads a KV head).
        stages: pages under way for each warp, at least 2.
        blocks: thread blocks of the launch.
    """

    warps: int
    stages: int
    blocks: int

    def as_list(self) -> list[int]:
        """The fields as an operator's argument."""
        return list(astuple(self))


@dataclass(frozen=True)
class Gpu:
    """What a plan depends on: SMs, bytes of shared memory of an SM and of a thread block."""

    sms: int
    shared: int
    block_shared: int

    @classmethod
    @cache
    def of(cls, device: torch.device) -> "Gpu":
        """That GPU."""
        properties = torch.cuda.get_device_properties(device)
        shared = SHARED.get((properties.major, properties.minor), SMALLEST_SHARED)
        return cls(properties.multi_processor_count, *shared)

    def fits(self, warps: int, stages: int, per_sm: int, head_dim: int, group: int) -> bool:
        """Whether so many thread blocks of such a plan run on an SM at once."""
        size = shared_bytes(head_dim, warps, stages)
        together = per_sm * (size + BLOCK_RESERVE)
        in_time = warps * per_sm <= most_warps(group)
        return in_time and size <= self.block_shared and together <= self.shared


def shared_bytes(head_dim: int, warps: int, stages: int) -> int:
    """Shared memory of a thread block: pages under way, their barriers, a few words."""
    return warps * stages * (page_bytes(head_dim) + BARRIER_BYTES) + WORDS_BYTES


def most_warps(group: int) -> int:
    """Warps whose registers an SM has room for."""
    return 12 if group <= 8 else 8


def key_of(
    batch: int, kv_heads: int, group: int, head_dim: int, max_pages: int
) -> tuple[int, int, int, int]:
    """What the table is indexed by: head dimension, tiles of 8 query heads, and how many pages a
    batch and one of its sequences have at most, as powers of two."""
    pages = max(1, max_pages)
    tiles = -(-group // 8)
    return head_dim, tiles, round(math.log2(pages * batch * kv_heads)), round(math.log2(pages))


def thread_blocks(slots: int, items: int) -> int:
    """Thread blocks of a launch: of the ``slots`` that run at once, as many as share ``items``
    (sequences times KV heads) evenly, if that is most of them.

    With lengths alike nothing, or as little as can be, is then merged between thread blocks; and
    fewer SMs than all reach the memory's full speed.
    """
    for blocks in range(slots, int(LEAST_FILL * slots), -1):
        if items % blocks == 0 or blocks % items == 0:
            return blocks
    return slots


def _measured(key: tuple[int, int, int, int]) -> tuple[int, int, int] | None:
    """The table's entry nearest to a key, at most ``NEAR`` powers of two away.

    Of equally near ones the one with fewer pages: a batch has at most as many as its key says.
    """
    near = [
        (abs(found[2] - key[2]) + abs(found[3] - key[3]), *found[2:], plan)
        for found, plan in TABLE.items()
        if found[:2] == key[:2]
    ]
    distance, *_, plan = min(near, default=(NEAR + 1, None))
    return plan if distance <= NEAR else None


def plan_of(
    batch: int, kv_heads: int, head_dim: int, max_pages: int, device, group: int = 8
) -> Plan:
    """The plan for a batch whose sequences have at most ``max_pages`` pages, with ``group`` query
    heads a KV head."""
    return choose(batch, kv_heads, group, head_dim, max_pages, Gpu.of(device))


@cache
def choose(batch: int, kv_heads: int, group: int, head_dim: int, max_pages: int, gpu: Gpu) -> Plan:
    """As ``plan_of``, for any GPU.

    Few pages: wide thread blocks, one an SM, so that little is merged through memory. Many: narrow
    ones, which need not wait for each other where a sequence ends.
    """
    measured = _measured(key_of(batch, kv_heads, group, head_dim, max_pages))
    if measured and gpu.fits(*measured, head_dim, group):
        warps, stages, per_sm = measured
        return Plan(warps, stages, thread_blocks(per_sm * gpu.sms, batch * kv_heads))
    few = batch * kv_heads * max_pages < 64 * gpu.sms
    for warps, per_sm in ((8, 1), (4, 2)) if few else ((4, 2),):
        for stages in range(4, 1, -1):
            if gpu.fits(warps, stages, per_sm, head_dim, group):
                return Plan(warps, stages, thread_blocks(per_sm * gpu.sms, batch * kv_heads))
    return Plan(4, 2, thread_blocks(gpu.sms, batch * kv_heads))
