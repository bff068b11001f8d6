# SPDX-License-Identifier: Apache-2.0
"""The block layout of one linear input: 128-channel blocks, INT4 first, INT8 last."""

from dataclasses import dataclass

import torch

from comet.errors import UserError

BLOCK = 128
PADDING = -1


@dataclass(frozen=True)
class BlockLayout:
    """How the K input channels of a linear layer are cut into blocks (paper, section 3.2).

    Attributes:
        channels: K, real input channels.
        int4_blocks: B4, leading blocks whose activations are INT4.
        int8_blocks: B8, trailing blocks whose activations are INT8.
    """

    channels: int
    int4_blocks: int
    int8_blocks: int

    def __post_init__(self) -> None:
        if self.channels < 1 or min(self.int4_blocks, self.int8_blocks) < 0:
            raise ValueError(f"impossible block layout {self}")
        if self.blocks != -(-self.channels // BLOCK):
            raise ValueError(
                f"{self.channels} channels need {-(-self.channels // BLOCK)} blocks of {BLOCK}, "
                f"the layout has {self.blocks}"
            )

    @property
    def blocks(self) -> int:
        """B = B4 + B8."""
        return self.int4_blocks + self.int8_blocks

    @property
    def padded(self) -> int:
        """K rounded up to whole blocks."""
        return self.blocks * BLOCK

    @property
    def int4_channels(self) -> int:
        """Padded channels in the INT4 part; the INT8 part starts here."""
        return self.int4_blocks * BLOCK

    @property
    def int8_block_share(self) -> float:
        """Share of INT8 blocks in percent; a partly filled block counts as one."""
        return 100.0 * self.int8_blocks / self.blocks

    @staticmethod
    def of(channels: int, int8_blocks: int) -> "BlockLayout":
        """Layout of ``channels`` with the given number of INT8 blocks."""
        blocks = -(-channels // BLOCK)
        return BlockLayout(channels, blocks - int8_blocks, int8_blocks)


def natural_permutation(layout: BlockLayout) -> torch.Tensor:
    """Channels in their own order, padding at the end; int32 [K padded]."""
    permutation = torch.full((layout.padded,), PADDING, dtype=torch.int32)
    permutation[: layout.channels] = torch.arange(layout.channels, dtype=torch.int32)
    return permutation


def check_permutation(permutation: torch.Tensor, layout: BlockLayout) -> None:
    """Check that every channel occurs once and the rest is padding.

    Raises:
        UserError: the permutation does not fit the layout.
    """
    if permutation.shape != (layout.padded,):
        raise UserError(
            f"permutation has shape {tuple(permutation.shape)}, the layout needs ({layout.padded},)"
        )
    real = permutation[permutation != PADDING]
    if not torch.equal(real.long().sort().values.cpu(), torch.arange(layout.channels)):
        raise UserError(
            f"permutation does not hold each of the {layout.channels} channels exactly once"
        )


def gather_channels(x: torch.Tensor, permutation: torch.Tensor) -> torch.Tensor:
    """Put channels in permuted order, zeros where the permutation is padding.

    Args:
        x: [..., K] values.
        permutation: int32 [K padded], channel of each position or -1.

    Returns:
        [..., K padded], same dtype as ``x``.
    """
    index = permutation.long().to(x.device)
    gathered = x.index_select(-1, index.clamp(min=0))
    return gathered.masked_fill_(index < 0, 0)


def scatter_channels(x: torch.Tensor, permutation: torch.Tensor, channels: int) -> torch.Tensor:
    """Inverse of ``gather_channels``: [..., K padded] back to [..., K] in natural order."""
    index = permutation.long().to(x.device)
    real = index >= 0
    out = torch.empty(*x.shape[:-1], channels, dtype=x.dtype, device=x.device)
    out[..., index[real]] = x[..., real]
    return out
