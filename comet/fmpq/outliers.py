# SPDX-License-Identifier: Apache-2.0
"""Which channels are outliers and how many blocks become INT8 (FMPQ, step 2)."""

import torch

from comet.fmpq.options import FMPQOptions
from comet.formats.blocks import BLOCK, BlockLayout


def choose_layout(statistic: torch.Tensor, options: FMPQOptions) -> BlockLayout:
    """Number of INT4 and INT8 blocks of one linear input.

    The paper makes a block INT8 when it holds an outlier channel and reports under 20 % of such
    blocks; it gives no threshold. With ``share`` every input gets as many INT8 blocks as the share
    allows, at least one when the share is positive. With ``threshold`` it gets as many as its
    outlier channels fill, at most the share.

    Args:
        statistic: fp32 [K], one value a channel.
    """
    channels = statistic.numel()
    blocks = -(-channels // BLOCK)
    if options.int8_share == 0:
        return BlockLayout.of(channels, 0)
    cap = max(1, int(options.int8_share * blocks + 1e-9))
    if options.outlier_rule == "share":
        return BlockLayout.of(channels, cap)
    outliers = int(outlier_mask(statistic, options.outlier_threshold).sum())
    return BlockLayout.of(channels, min(cap, -(-outliers // BLOCK)))


def outlier_mask(statistic: torch.Tensor, threshold: float) -> torch.Tensor:
    """bool [K]: channels whose statistic exceeds ``threshold`` times the layer's median."""
    return statistic > threshold * statistic.median()
