# SPDX-License-Identifier: Apache-2.0
"""How much of a layer is INT8: the shares that the paper reports (section 3.2)."""

from collections.abc import Mapping

from comet.fmpq.options import FMPQOptions
from comet.fmpq.outliers import outlier_mask
from comet.fmpq.plan import InputPlan
from comet.formats.weights import PackedWeight

METRICS = ("outlier_channel_share", "int8_block_share", "w4a4_mac_share")


def layer_shares(
    plans: Mapping[str, InputPlan], packed: Mapping[str, PackedWeight], options: FMPQOptions
) -> dict:
    """Shares of one decoder layer in percent, over all its linears, and by input.

    * outlier channels: input channels whose statistic exceeds ``outlier_threshold`` times the
      median of their input;
    * INT8 blocks: per linear, a partly filled block counts as one;
    * W4A4 MACs: real input channels times outputs in INT4 blocks (padding is not counted).

    Args:
        plans: by input name.
        packed: by linear name inside the layer.
        options: statistic and threshold of an outlier.
    """
    inputs = {}
    outliers = channels = int8 = blocks = macs4 = macs = 0
    for name, plan in plans.items():
        layout = plan.layout
        flagged = int(
            outlier_mask(
                plan.statistics.metric(options.outlier_metric), options.outlier_threshold
            ).sum()
        )
        int4_channels = int((plan.permutation[: layout.int4_channels] >= 0).sum())
        outputs = sum(packed[linear].out_features for linear in plan.group.linears)
        outliers, channels = outliers + flagged, channels + layout.channels
        int8 += layout.int8_blocks * len(plan.group.linears)
        blocks += layout.blocks * len(plan.group.linears)
        macs4, macs = macs4 + int4_channels * outputs, macs + layout.channels * outputs
        inputs[name] = {
            "channels": layout.channels,
            "int4_blocks": layout.int4_blocks,
            "int8_blocks": layout.int8_blocks,
            "outlier_channels": flagged,
        }
    return {
        "outlier_channel_share": 100.0 * outliers / channels,
        "int8_block_share": 100.0 * int8 / blocks,
        "w4a4_mac_share": 100.0 * macs4 / macs,
        "inputs": inputs,
    }
