# SPDX-License-Identifier: Apache-2.0
"""Which kernel instance computes a GEMM on sm_90a, and how the work is cut.

``plan_table.TABLE`` holds what was measured fastest on an H200 (``comet.speed.tune_sm90``) and is
looked up first; the rules below serve every other shape and GPU.
"""

import torch

from comet.kernels.layout_sm90 import tile_rows
from comet.kernels.library import load_for
from comet.kernels.plan_table import TABLE, TABLE_SMS
from comet.kernels.w4ax_call import Instance, Plan, instances

BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024)
# Share of the resident thread blocks that clusters of this size reach on an H200: they do not fill
# every group of SMs.
CLUSTER_FILL = {1: 1.0, 2: 1.0, 3: 0.88, 4: 0.9, 5: 0.88, 6: 0.77, 7: 0.8, 8: 0.9}
LEAST_BLOCKS = (
    4  # blocks of K a thread block should have: below, splitting costs more than it gives
)
# Large tiles are cut along K where an SM would idle for this many blocks of K in the last of at
# most so many rounds. Every measured plan of a large layer agrees: with 10 to 14 blocks whole tiles
# were faster, with 39 cut ones.
WORTH_CUTTING, FEW_ROUNDS, LARGE_TILE = 16, 4, 128
MANY_ROWS = 448  # 64-channel rows from which the next kernel may start early at few tokens


def bucket_of(tokens: int) -> int:
    """The number of tokens that this one is planned as; one above the last bucket."""
    return next((bucket for bucket in BUCKETS if tokens <= bucket), BUCKETS[-1] + 1)


def plan_of(
    tokens: int, channels: int, blocks: int, device: torch.device, dependent_launch: bool
) -> Plan:
    """The plan for [tokens, channels] with ``blocks`` blocks of 128 along K.

    Args:
        device: a GPU with the library's sm_90a code.
        dependent_launch: the launch may overlap the kernel in front.
    """
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return choose(tokens, channels, blocks, sms, instances(load_for(device)), dependent_launch)


def choose(
    tokens: int,
    channels: int,
    blocks: int,
    sms: int,
    available: dict[str, Instance],
    dependent_launch: bool = False,
) -> Plan:
    """As ``plan_of``, for a GPU with ``sms`` SMs and these kernel instances."""
    rows = tile_rows(channels)
    plan = TABLE.get((bucket_of(tokens), rows, blocks, dependent_launch))
    if plan is not None and sms == TABLE_SMS:
        tiles = available[plan.instance].tiles(tokens, channels)
        if plan.shared_tiles <= tiles:
            return plan
    overlap = {}
    if dependent_launch:
        many = rows >= MANY_ROWS and tokens <= 16
        overlap = {"dependent_launch": True, "prefetch": 8 if many else 2, "early_trigger": many}
    for name, least in _preferred(tokens):
        instance = available[name]
        tiles = instance.tiles(tokens, channels)
        if tiles < least * sms:
            continue
        slots = sms * instance.residency
        if instance.stream:
            shared = _shared(tiles, blocks, slots) if instance.tokens >= LARGE_TILE else 0
            return Plan(name, grid=min(tiles, slots), shared_tiles=shared, **overlap)
        return Plan(name, split=_split(tiles, blocks, slots, sms), **overlap)
    raise AssertionError("the last preference always fits")


def _preferred(tokens: int) -> list[tuple[str, float]]:
    """Instances for this M, best first, each with the least number of tiles an SM it is for."""
    if tokens <= 8:
        return [("T8x1", 0)]
    if tokens <= 16:
        return [("T16x1", 0)]
    if tokens <= 32:
        return [("T32s2", 1.6), ("T32x1", 0)]
    if tokens <= 64:
        return [("T64s2", 1.6), ("T64x1", 0)]
    if tokens <= 128:
        return [("T128s2", 0.7), ("T128x2", 0)]
    return [("T256s2", 0.85), ("T128s3", 0.9), ("T128s2", 0.9), ("T128x2", 0)]


def _shared(tiles: int, blocks: int, slots: int) -> int:
    """Tiles that all thread blocks cut up among them along K; the others are dealt out whole."""
    rest = tiles % slots
    idle = (1 - rest / slots) * blocks
    few = slots < tiles <= FEW_ROUNDS * slots
    return rest + slots if rest and few and idle >= WORTH_CUTTING else 0


def _split(tiles: int, blocks: int, slots: int, sms: int) -> int:
    """Thread blocks that share a tile: the fewest that give most SMs two where all run at once.

    One warpgroup alone on an SM waits for its own unpacking; measured plans have two or more.
    """
    split = 1
    while tiles * split < 1.8 * sms and split < max(CLUSTER_FILL):
        wider = split + 1
        if tiles * wider > slots * CLUSTER_FILL[wider] or blocks < LEAST_BLOCKS * wider:
            break
        split = wider
    return split
