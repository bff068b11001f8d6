# SPDX-License-Identifier: Apache-2.0
"""How KV4 decode attention is cut into thread blocks.

Every thread block takes an equal run of the batch's pages, whatever the lengths are; within it,
warps take pages in turn, each with its own ring of pages under way. Only shapes decide, so that a
plan is the same at capture and at replay of a CUDA graph.
"""

from dataclasses import astuple, dataclass

import torch

from comet.formats.kv4 import page_bytes

# Shared memory of an SM for pages under way, and what a thread block takes beside its own.
SHARED_BYTES = {(9, 0): 227 * 1024, (8, 0): 163 * 1024}
SMALLEST_SHARED = 99 * 1024
BLOCK_RESERVE = 1024
MAX_WARPS = 8


@dataclass(frozen=True)
class Plan:
    """One launch of decode attention.

    Attributes:
        warps: of a thread block, 1 to 8.
        stages: pages under way for each warp, at least 2.
        blocks: thread blocks of the launch.
    """

    warps: int
    stages: int
    blocks: int

    def as_list(self) -> list[int]:
        """The fields as an operator's argument."""
        return list(astuple(self))


def plan_of(batch: int, kv_heads: int, head_dim: int, max_pages: int, device) -> Plan:
    """The plan for a batch whose sequences have at most ``max_pages`` pages."""
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    shared = SHARED_BYTES.get(capability, SMALLEST_SHARED)
    return choose(batch, kv_heads, head_dim, max_pages, properties.multi_processor_count, shared)


def choose(batch: int, kv_heads: int, head_dim: int, max_pages: int, sms: int, shared: int) -> Plan:
    """As ``plan_of``, for a GPU with ``sms`` SMs of ``shared`` bytes of shared memory.

    Few pages: wide thread blocks, one an SM, so that little is merged through memory. Many: narrow
    ones, which need not wait for each other where a sequence ends.
    """
    pages = batch * kv_heads * max_pages
    warps = 8 if pages < 64 * sms else 4
    per_sm = MAX_WARPS // warps
    room = shared // per_sm - BLOCK_RESERVE
    stages = max(2, min(room // (warps * page_bytes(head_dim)), 4))
    return Plan(warps, stages, sms * per_sm)
