# SPDX-License-Identifier: Apache-2.0
"""Per-channel statistics of a linear layer's input over calibration text (FMPQ, step 1)."""

import copy

import torch

from comet.errors import UserError

PERCENTILES = {"p999": 0.999, "p99": 0.99}


class ChannelStatistics:
    """Running statistics of the channels of one linear input.

    Percentiles are exact: of each channel only the largest magnitudes that the percentile needs
    are kept, so memory is that share of the activations.

    Args:
        channels: K.
        tokens: number of tokens that will be seen in all.
        name: layer and input, for error messages.
        metrics: the statistics that will be asked for (``FMPQOptions.outlier_metric``).
        correlations: keep the whole second moment, [K, K], and not only its diagonal.
        weights: fp32 [tokens] of mean 1, what each token counts in the whole second moment, in the
            order in which they will be seen; None for all the same.
    """

    def __init__(
        self,
        channels: int,
        tokens: int,
        name: str,
        metrics: tuple[str, ...] = ("p999",),
        correlations: bool = False,
        weights: torch.Tensor | None = None,
    ) -> None:
        self.name, self.weights = name, weights
        self.tokens = tokens
        self.seen = 0
        self.square_sum = torch.zeros(channels, dtype=torch.float64)
        self.product_sum = torch.zeros(channels, channels) if correlations else None
        lowest = min(PERCENTILES.get(metric, 1.0) for metric in metrics)
        self.tail_size = _rank(lowest, tokens)
        self.tail = torch.zeros(channels, 0)

    def update(self, x: torch.Tensor) -> None:
        """Add activations [..., K].

        Raises:
            UserError: a value is not finite.
        """
        x = x.detach().reshape(-1, x.shape[-1]).float()
        if not torch.isfinite(x).all():
            raise UserError(
                f"calibration: the input of {self.name} holds a value that is not finite; "
                "use float32 or bfloat16 for the model, or another calibration text"
            )
        self.square_sum += x.double().square().sum(dim=0).cpu()
        if self.product_sum is not None:
            counted = weighted(x, self.weights, self.seen)
            self.product_sum = self.product_sum.to(x.device).addmm_(counted.t(), x)
        self.seen += x.shape[0]
        merged = torch.cat((self.tail.to(x.device), x.abs().t()), dim=1)
        self.tail = merged.topk(min(self.tail_size, merged.shape[1]), dim=1, sorted=False).values
        self.tail = self.tail.cpu()

    def scaled(self, scale: torch.Tensor) -> "ChannelStatistics":
        """Statistics of the same tokens with each channel multiplied by fp32 [K]."""
        other = copy.copy(self)
        other.square_sum = self.square_sum * scale.double().square()
        other.tail = self.tail * scale.abs()[:, None]
        if self.product_sum is not None:
            on_device = scale.to(self.product_sum)
            other.product_sum = self.product_sum * on_device * on_device[:, None]
        return other

    def mean_square(self) -> torch.Tensor:
        """E[x^2] of each channel, fp32 [K]."""
        return (self.square_sum / max(1, self.seen)).float()

    def second_moment(self) -> torch.Tensor:
        """Mean of x x^T, weighted by token where weights were given, fp32 [K, K], where
        correlations were kept; else its diagonal [K]."""
        if self.product_sum is None:
            return self.mean_square()
        return self.product_sum / max(1, self.seen)

    def metric(self, name: str) -> torch.Tensor:
        """A statistic that ranks channels, fp32 [K].

        A percentile is the nearest rank from above: the smallest magnitude that at most the given
        share of tokens exceeds.

        Raises:
            ValueError: the percentile was not announced, so too little was kept.
        """
        if name == "mean_square":
            return self.mean_square()
        rank = _rank(PERCENTILES.get(name, 1.0), self.seen)
        if rank > self.tail_size:
            raise ValueError(f"{name} was not among the metrics of {self.name}")
        return self.tail.topk(min(rank, self.tail.shape[1]), dim=1).values[:, -1]


def weighted(x: torch.Tensor, weights: torch.Tensor | None, seen: int) -> torch.Tensor:
    """fp32 [n, K], the next tokens after ``seen`` others times what they count; None: as they are.

    Args:
        x: fp32 [n, K].
        weights: fp32 [tokens], of all of them.
        seen: tokens before these.
    """
    return x if weights is None else x * weights[seen : seen + len(x), None].to(x.device)


def _rank(share: float, tokens: int) -> int:
    """How many of the largest magnitudes reach down to a percentile."""
    return int((1.0 - share) * tokens) + 1
