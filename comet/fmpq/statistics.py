# SPDX-License-Identifier: Apache-2.0
"""Per-channel statistics of a linear layer's input over calibration text (FMPQ, step 1)."""

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
        metric: the statistic that will be asked for (``FMPQOptions.outlier_metric``).
    """

    def __init__(self, channels: int, tokens: int, name: str, metric: str = "p999") -> None:
        self.name = name
        self.metric_name = metric
        self.seen = 0
        self.square_sum = torch.zeros(channels, dtype=torch.float64)
        self.tail_size = int((1.0 - PERCENTILES.get(metric, 1.0)) * tokens) + 1
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
        self.seen += x.shape[0]
        self.square_sum += x.double().square().sum(dim=0).cpu()
        merged = torch.cat((self.tail.to(x.device), x.abs().t()), dim=1)
        self.tail = merged.topk(min(self.tail_size, merged.shape[1]), dim=1, sorted=False).values
        self.tail = self.tail.cpu()

    def mean_square(self) -> torch.Tensor:
        """E[x^2] of each channel, fp32 [K]."""
        return (self.square_sum / max(1, self.seen)).float()

    def metric(self) -> torch.Tensor:
        """The statistic that ranks channels, fp32 [K].

        A percentile is the nearest rank from above: the smallest kept magnitude that at most the
        given share of tokens exceeds.
        """
        if self.metric_name == "mean_square":
            return self.mean_square()
        share = PERCENTILES.get(self.metric_name, 1.0)
        rank = int((1.0 - share) * self.seen) + 1
        return self.tail.topk(min(rank, self.tail.shape[1]), dim=1).values[:, -1]
