# SPDX-License-Identifier: Apache-2.0
"""Weighted stream-K: how the sm_80 W4Ax GEMM shares out its work (paper, section 4.4).

The 128-channel blocks of K of all output tiles form one line, tile after tile, in which an INT8
block is twice as long as an INT4 block: it takes the tensor cores twice as long. The line is cut
into equal runs, one a thread block; a cut inside an INT8 block moves to its end. A tile may so be
shared by several thread blocks, whose exact integer sums are added.
``csrc/include/comet/sm80/schedule.cuh`` is the same on the GPU.
"""

from dataclasses import dataclass
from typing import NamedTuple

from comet.errors import UserError

INT8_WEIGHT = 2
# Shorter runs cost more in the adding up of parts than they gain in balance.
MIN_RUN = 8


class Part(NamedTuple):
    """Blocks ``first`` to ``last``, both included, of K of one output tile."""

    tile: int
    first: int
    last: int


@dataclass(frozen=True)
class StreamK:
    """Work of one GEMM, cut into runs.

    Attributes:
        tiles: output tiles.
        int4_blocks: leading blocks of K, of weight 1.
        int8_blocks: trailing blocks of K, of weight 2.
        runs: thread blocks; 1, or at most half the total weight, so that no run is empty.
    """

    tiles: int
    int4_blocks: int
    int8_blocks: int
    runs: int

    def __post_init__(self) -> None:
        if self.tiles < 1 or min(self.int4_blocks, self.int8_blocks) < 0 or self.blocks < 1:
            raise UserError(
                f"tiles, int4_blocks, int8_blocks are {self.tiles}, {self.int4_blocks}, "
                f"{self.int8_blocks}; there must be a tile and a block"
            )
        limit = max(1, self.total_weight // 2)
        if not 1 <= self.runs <= limit:
            raise UserError(f"runs is {self.runs}; the limit is 1 to {limit}")

    @property
    def blocks(self) -> int:
        """Blocks of K of a tile."""
        return self.int4_blocks + self.int8_blocks

    @property
    def tile_weight(self) -> int:
        """Weight of the blocks of one tile."""
        return self.int4_blocks + INT8_WEIGHT * self.int8_blocks

    @property
    def total_weight(self) -> int:
        """Weight of all blocks of all tiles."""
        return self.tiles * self.tile_weight

    def weight(self, part: Part) -> int:
        """Weight of a part of a tile."""
        int8 = max(0, part.last + 1 - max(part.first, self.int4_blocks))
        return part.last + 1 - part.first + (INT8_WEIGHT - 1) * int8

    def begin(self, run: int) -> int:
        """First block of a run, counted over all tiles; ``begin(runs)`` is the end of the last."""
        tile, inside = divmod(run * self.total_weight // self.runs, self.tile_weight)
        extra = max(0, inside - self.int4_blocks)
        return tile * self.blocks + inside - extra - (-extra // INT8_WEIGHT)

    def owner(self, tile: int, block: int) -> int:
        """The run that holds a block of K of a tile."""
        start = tile * self.tile_weight + block
        start += (INT8_WEIGHT - 1) * max(0, block - self.int4_blocks)
        return ((start + 1) * self.runs - 1) // self.total_weight

    def parts(self, run: int) -> list[Part]:
        """Parts of tiles that make up a run, in the order in which they are computed."""
        begin, end = self.begin(run), self.begin(run + 1)
        found = []
        while begin < end:
            tile, first = divmod(begin, self.blocks)
            last = min(self.blocks, first + end - begin) - 1
            found.append(Part(tile, first, last))
            begin += last + 1 - first
        return found


def schedule(tiles: int, int4_blocks: int, int8_blocks: int, runs: int) -> list[list[Part]]:
    """Parts of output tiles that each of ``runs`` thread blocks computes.

    Raises:
        UserError: there is nothing to compute, or too little for so many runs.
    """
    work = StreamK(tiles, int4_blocks, int8_blocks, runs)
    return [work.parts(run) for run in range(runs)]


def run_count(total_weight: int, sms: int, residency: int) -> int:
    """Runs for a GPU: as many as it holds at a time, fewer where they would become short.

    Args:
        total_weight: of all blocks.
        sms: streaming multiprocessors; each gets the same number of runs where it gets any.
        residency: thread blocks that run on one at a time.
    """
    runs = min(sms * residency, max(1, total_weight // MIN_RUN))
    return runs if runs < sms else runs // sms * sms
