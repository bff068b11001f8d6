# SPDX-License-Identifier: Apache-2.0
"""How a weight is rounded: its groups, the search of their range, and the rounding of codes."""

from dataclasses import dataclass

import torch

from comet.errors import UserError
from comet.fmpq.gptq import fixed_grid, walk_columns
from comet.fmpq.weights import CLIP_RATIOS, rows_at_once

CLIPS = ("weighted", "mse", "none")
ROUNDINGS = ("gptq", "nearest")


@dataclass(frozen=True)
class WeightGrid:
    """INT4 weights (or more bits) that share a scale within a group of input channels.

    Attributes:
        bits: of a code.
        group: input channels that share a scale, None for an output channel; a last group may be
            shorter.
        symmetric: codes -2^(bits-1) .. 2^(bits-1) - 1; else an integer zero point.
        clip: objective of the search of the range: squared weight error weighted by E[x^2] of the
            channel, unweighted, or no search.
        ratio: share of the range where there is no search.
        rounding: ``gptq`` on the grid thus fixed, or ``nearest``.
        ratios: shares of the range that the search tries.
    """

    bits: int = 4
    group: int | None = 128
    symmetric: bool = False
    clip: str = "weighted"
    ratio: float = 1.0
    rounding: str = "gptq"
    ratios: tuple[float, ...] = CLIP_RATIOS

    def __post_init__(self) -> None:
        for name, allowed in (("clip", CLIPS), ("rounding", ROUNDINGS)):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"weights: {name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}"
                )

    def restore(self, weight: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        """Round and restore.

        Args:
            weight: fp32 [N, K].
            moment: fp32 [K, K], mean of x x^T of what the weight multiplies.

        Returns:
            fp32 [N, K].
        """
        return self.round_on(self.grid(weight, moment.diagonal()), weight, moment)

    def grid(self, weight: torch.Tensor, energy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Scale, zero, lowest and highest code of each weight, fp32 [N, K] each.

        Args:
            weight: fp32 [N, K].
            energy: fp32 [K], E[x^2] of the channels.
        """
        importance = energy if self.clip == "weighted" else torch.ones_like(energy)
        size = self.group or weight.shape[1]
        parts = zip(weight.split(size, dim=1), importance.split(size), strict=True)
        grids = [self._group_grid(part, weights) for part, weights in parts]
        return tuple(torch.cat(fields, dim=1) for fields in zip(*grids, strict=True))

    def round_on(
        self, grid: tuple[torch.Tensor, ...], weight: torch.Tensor, moment: torch.Tensor
    ) -> torch.Tensor:
        """fp32 [N, K], rounded on a grid as of ``grid`` and restored."""
        if self.rounding == "gptq":
            return walk_columns(weight, moment, fixed_grid(*grid))[1]
        return _restored(weight, *grid)

    def _group_grid(self, part: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The grid of a group [N, n], fields [N, n]."""
        rows = part.split(rows_at_once(part))
        ratio = torch.cat([self._best_ratio(slice_, importance) for slice_ in rows])
        return tuple(field.expand(part.shape) for field in self._grid_at(part, ratio))

    def _best_ratio(self, part: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
        """fp32 [N, 1]."""
        best = part.new_full((len(part), 1), self.ratio)
        if self.clip == "none":
            return best
        least = torch.full_like(best, torch.inf)
        for ratio in self.ratios:
            difference = _restored(part, *self._grid_at(part, torch.full_like(least, ratio))) - part
            error = (difference.square_() @ importance)[:, None]
            best = torch.where(error < least, ratio, best)
            least = torch.minimum(least, error)
        return best

    def _grid_at(self, part: torch.Tensor, ratio: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The grid of a share [N, 1] of the range; fields [N, 1]."""
        levels = 2**self.bits - 1
        if self.symmetric:
            scale = part.abs().amax(dim=1, keepdim=True) * ratio / (levels // 2)
            zero = torch.full_like(scale, 2 ** (self.bits - 1))
        else:
            low = part.amin(dim=1, keepdim=True).clamp(max=0) * ratio
            scale = (part.amax(dim=1, keepdim=True).clamp(min=0) * ratio - low) / levels
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))
            zero = (-low / scale).round()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return scale, zero, torch.zeros_like(zero), torch.full_like(zero, levels)


def _restored(weight, scale, zero, lowest, highest) -> torch.Tensor:
    """fp32 [N, n] rounded to the nearest and restored."""
    codes = ((weight / scale).round_() + zero).clamp_(lowest, highest)
    return codes.sub_(zero).mul_(scale)
