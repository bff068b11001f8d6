# SPDX-License-Identifier: Apache-2.0
"""The channel permutation that gathers outliers in the last blocks (FMPQ, step 3)."""

import torch

from comet.formats.blocks import BLOCK, PADDING, BlockLayout


def outliers_last(statistic: torch.Tensor, layout: BlockLayout, order: str) -> torch.Tensor:
    """Normal channels first, the largest channels in the INT8 blocks, padding between them.

    The INT8 blocks are filled completely; padding ends the INT4 part. (When all blocks are INT8 it
    ends the last block.)

    Args:
        statistic: fp32 [K], one value a channel; ties keep their natural order.
        layout: blocks of each precision.
        order: ``sorted`` (normal channels ascending) or ``moved`` (natural order).

    Returns:
        int32 [K padded], natural channel of each position, -1 for padding.
    """
    ranked = statistic.argsort(stable=True)
    normal_count = max(0, layout.channels - layout.int8_blocks * BLOCK)
    normal, outliers = ranked[:normal_count], ranked[normal_count:]
    if order == "moved":
        normal, outliers = normal.sort().values, outliers.sort().values
    permutation = torch.full((layout.padded,), PADDING, dtype=torch.int32)
    permutation[:normal_count] = normal.to(torch.int32)
    start = layout.int4_channels
    permutation[start : start + outliers.numel()] = outliers.to(torch.int32)
    return permutation
