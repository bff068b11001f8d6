# SPDX-License-Identifier: Apache-2.0
"""What differences between rows are worth: recovery, standard errors, confidence intervals.

Rows are compared on the same windows or items, so errors are paired: what makes a window hard is
hard for every row and cancels. A loss is the mean negative log-likelihood of a token.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its error.

    Attributes:
        value: the estimate.
        stderr: its standard error; NaN where there is one sample only.
        low, high: ends of its confidence interval (bootstrap percentiles).
    """

    value: float
    stderr: float
    low: float
    high: float

    @property
    def beyond_two(self) -> bool:
        """Whether it lies more than two standard errors from zero."""
        return abs(self.value) > 2 * self.stderr


def mean_losses(window_losses: Sequence[float], context: int) -> np.ndarray:
    """Loss per scored token of each window, from the records' sums over ``context - 1`` tokens."""
    return np.asarray(window_losses, dtype=float) / (context - 1)


def gap_closed(loss: float, loss_w4a16: float, loss_w4a4: float) -> float:
    """Share of the way from W4A4 to W4A16 that a row goes: ln(P4 / x) / ln(P4 / P16).

    1 is as good as 16-bit activations on equal weights, 0 as bad as W4A4 without INT8; beyond both
    ends is possible. Losses are logarithms of perplexities.
    """
    return (loss_w4a4 - loss) / (loss_w4a4 - loss_w4a16)


def gap_estimate(
    losses: np.ndarray, w4a16: np.ndarray, w4a4: np.ndarray, seed: int = 0
) -> Estimate:
    """``gap_closed`` over windows, with its bootstrap error.

    Args:
        losses, w4a16, w4a4: [W], losses of the same windows.
        seed: of the bootstrap.
    """

    def statistic(rows: np.ndarray) -> np.ndarray:
        return gap_closed(*rows.mean(axis=-1))

    return bootstrap(np.stack((losses, w4a16, w4a4)), statistic, seed)


def loss_ratio(losses: np.ndarray, other: np.ndarray) -> Estimate:
    """Relative change of perplexity from ``other`` to ``losses``: exp(mean difference) - 1.

    Args:
        losses, other: [W], losses of the same windows.

    Returns:
        The change; its error is the paired standard error of the mean log-perplexity, carried over.
    """
    difference = losses - other
    estimate = bootstrap(difference[None], lambda rows: np.expm1(rows[0].mean(axis=-1)))
    stderr = paired_stderr(losses, other) * math.exp(float(difference.mean()))
    return Estimate(estimate.value, stderr, estimate.low, estimate.high)


def paired_stderr(first: np.ndarray, second: np.ndarray) -> float:
    """Standard error of the mean of ``first - second``, [W] each; NaN for one sample."""
    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    if difference.size < 2:
        return math.nan
    return float(difference.std(ddof=1) / math.sqrt(difference.size))


def items_of(text: str) -> np.ndarray:
    """Items of a task record, ``"0110"``, as [n] of zeros and ones."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(float) - ord("0")


def accuracy_difference(items: np.ndarray, other: np.ndarray, seed: int = 0) -> Estimate:
    """Difference of accuracy, ``items`` minus ``other``, on the same items [n]."""
    estimate = bootstrap(
        np.stack((items, other)), lambda rows: rows[0].mean(-1) - rows[1].mean(-1), seed
    )
    return Estimate(estimate.value, paired_stderr(items, other), estimate.low, estimate.high)


def accuracy_ratio(items: np.ndarray, exact: np.ndarray, seed: int = 0) -> Estimate:
    """Accuracy relative to another row's, usually 16-bit, on the same items [n].

    NaN where the other row has no item right.
    """
    if not exact.any():
        return Estimate(math.nan, math.nan, math.nan, math.nan)

    def statistic(rows: np.ndarray) -> np.ndarray:
        below = rows[1].mean(-1)
        return np.where(below > 0, rows[0].mean(-1) / np.where(below > 0, below, 1), np.nan)

    return bootstrap(np.stack((items, exact)), statistic, seed)


def bootstrap(
    samples: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int = 0
) -> Estimate:
    """Error of a statistic of samples that were drawn together.

    Args:
        samples: [rows, n]; all rows are resampled alike.
        statistic: [rows, ..., n] to [...].
        seed: of the resampling.

    Returns:
        The statistic of the samples; standard deviation and percentiles over resamples.
    """
    count = samples.shape[-1]
    value = float(statistic(samples))
    if count < 2:
        return Estimate(value, math.nan, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    spread = np.asarray(statistic(samples[:, drawn]))
    tail = 50 * (1 - LEVEL)
    low, high = np.nanpercentile(spread, [tail, 100 - tail])
    return Estimate(value, float(np.nanstd(spread, ddof=1)), float(low), float(high))
