# SPDX-License-Identifier: Apache-2.0
"""From calibration activations to the block layout and permutation of each linear input."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from comet.fmpq.noise import known_share, rounding_noise
from comet.fmpq.options import FMPQOptions
from comet.fmpq.outliers import choose_layout
from comet.fmpq.permutation import outliers_last
from comet.fmpq.statistics import ChannelStatistics
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.models.families import Family, InputGroup

CHECKPOINTS = ("natural", "fmpq", "fmpq-plus")
SAMPLE_TOKENS = 256
SPREAD_TOKENS = 1024


@dataclass
class InputPlan:
    """What is decided for one linear input of a decoder layer.

    Attributes:
        group: the input and the linears that share it, hence the permutation.
        statistics: channel statistics over the calibration tokens.
        sample: fp32 [tokens, K], the input of the first calibration tokens.
        spread: fp32 [tokens, K] each, tokens spread evenly over the calibration text; none where
            only the diagonal of the second moment is kept.
        layout, permutation: decided by ``decide``.
        noise: fp32 [K padded] in permuted order, variance of the rounding error that the weights
            are fitted to, decided by ``decide``; None where they are not.
    """

    group: InputGroup
    statistics: ChannelStatistics
    sample: torch.Tensor | None = None
    spread: list[torch.Tensor] = field(default_factory=list)
    layout: BlockLayout | None = None
    permutation: torch.Tensor | None = None
    noise: torch.Tensor | None = None

    def see(self, x: torch.Tensor) -> None:
        """Take in activations [..., K]."""
        tokens = x.detach().reshape(-1, x.shape[-1])
        if self.statistics.product_sum is not None:
            stride = max(1, -(-self.statistics.tokens // SPREAD_TOKENS))
            self.spread.append(tokens[-self.statistics.seen % stride :: stride].float())
        self.statistics.update(x)
        if self.sample is None:
            self.sample = tokens[:SAMPLE_TOKENS].float().cpu()

    def decide(self, options: FMPQOptions, checkpoint: str) -> None:
        """Choose layout and permutation; the ``natural`` checkpoint keeps order and has no INT8."""
        statistic, self.noise = self.statistics.metric(options.outlier_metric), None
        if checkpoint == "natural":
            self.layout = BlockLayout.of(statistic.numel(), 0)
            self.permutation = natural_permutation(self.layout)
            return
        self.layout = choose_layout(statistic, options)
        self.permutation = outliers_last(statistic, self.layout, options.channel_order)
        share = options.act_noise * known_share(statistic.numel(), self.statistics.seen)
        if share and options.weight_rounding == "gptq":
            sample = torch.cat(self.spread)
            self.noise = share * rounding_noise(sample, self.layout, self.permutation, options)


def watch_layer(
    layer: torch.nn.Module,
    name: str,
    family: Family,
    run: Callable[[], None],
    tokens: int,
    metrics: tuple[str, ...],
    correlations: bool,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, InputPlan]:
    """Watch each linear input while ``run`` pushes the calibration windows through the layer.

    Args:
        layer: decoder layer with its weights.
        name: its name, for messages.
        family: where its linears are.
        run: runs the calibration windows.
        tokens: number of calibration tokens.
        metrics: channel statistics to keep.
        correlations: keep each input's whole second moment, for GPTQ.
        weights: of the tokens, by ``name.input`` (``comet.fmpq.end_loss``).

    Returns:
        Plans by input name, in computing order; nothing is decided yet.
    """
    plans = {}
    with ExitStack() as hooks:
        for group in family.inputs:
            linear = layer.get_submodule(group.linears[0])
            where = f"{name}.{group.name}"
            statistics = ChannelStatistics(
                linear.in_features,
                tokens,
                where,
                metrics,
                correlations,
                None if weights is None else weights[where],
            )
            plan = plans[group.name] = InputPlan(group, statistics)
            hook = linear.register_forward_pre_hook(lambda _, x, plan=plan: plan.see(x[0]))
            hooks.callback(hook.remove)
        run()
    return plans
