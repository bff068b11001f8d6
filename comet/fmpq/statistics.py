# SPDX-License-Identifier: Apache-2.0
"""Per-channel statistics of a linear layer's input over calibration text (FMPQ, step 1)."""

import torch

from comet.errors import UserError

TAIL_SHARE = 0.01


class ChannelStatistics:
    """Running statistics of the channels of one linear input.

    Percentiles are exact: the largest 1 % of the magnitudes of each channel are kept, which is
    what the 99 and 99.9 percentiles need, so memory is 1 % of the activations.

    Args:
        channels: K.
        tokens: number of tokens that will be seen in all.
        name: layer and input, for error messages.
    """

    def __init__(self, channels: int, tokens: int, name: str) -> None:
        self.name = name
        self.tokens = tokens
        self.seen = 0
        self.square_sum = torch.zeros(channels, dtype=torch.float64)
        self.tail_size = max(1, int(TAIL_SHARE * tokens) + 1)
        self.tail = torch.zeros(0, channels)

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
        merged = torch.cat((self.tail.to(x.device), x.abs()))
        self.tail = merged.topk(min(self.tail_size, merged.shape[0]), dim=0).values.cpu()

    def mean_square(self) -> torch.Tensor:
        """E[x^2] of each channel, fp32 [K]."""
        return (self.square_sum / max(1, self.seen)).float()

    def percentile(self, share: float) -> torch.Tensor:
        """Magnitude that ``share`` of the tokens do not exceed (nearest rank), fp32 [K]."""
        rank = int((1.0 - share) * self.seen)
        return self.tail[min(rank, self.tail.shape[0] - 1)]

    def metric(self, name: str) -> torch.Tensor:
        """The statistic that ranks channels (``FMPQOptions.outlier_metric``), fp32 [K]."""
        if name == "max":
            return self.tail[0]
        if name == "mean_square":
            return self.mean_square()
        return self.percentile({"p999": 0.999, "p99": 0.99}[name])
