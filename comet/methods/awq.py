# SPDX-License-Identifier: Apache-2.0
"""AWQ (Lin et al., MLSys 2024): weights scaled by how large their activations are, then clipped.

Section 3.2: salient channels of the weight are multiplied by s > 1 before rounding and the input
is divided by it. The scale is s = s_X^alpha (equation 5), s_X the mean magnitude of the input
channel, and alpha in [0, 1] is the grid point with the least error of the linear's output,
|| Q(W diag(s)) (diag(s)^-1 X) - W X || (equation 4). Then weights are clipped: the range of each
group is shrunk to the grid point with the least error of the group's part of the output.

Errors are computed from the second moment M of the input, tr(D M D^T) for a weight error D: the
mean squared output error over every calibration token and not over a sample. The authors' code
searches q, k and v together by the error of the attention's output, and gate and up by that of the
MLP's; here the linears that read one input share a scale by the sum of their own output errors, as
equation 4 is written, so that only one linear is in play. The attention output is scaled only
where every query head has a K and V head of its own: else the division would not fold into V.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from comet.methods.linear import Divide, FakeLinear, round_asymmetric, transformed_weight
from comet.methods.method import Block, LayerInput, Method
from comet.methods.rtn import round_weight
from comet.models.families import Family

GRID = 20
LARGEST_SHRINK = 0.5
SMALLEST = 1e-4
# Clipping moves the products of Q and K, which no linear's output error shows.
UNCLIPPED = ("q_proj", "k_proj")


def search_scale(
    weights: list[torch.Tensor],
    magnitude: torch.Tensor,
    moment: torch.Tensor,
    bits: int,
    group: int | None,
) -> torch.Tensor:
    """The scale s of equation 5 with the least output error (equation 4).

    Args:
        weights: fp32 [N, K] each, of all linears that read the input.
        magnitude: fp32 [K], mean magnitude of each input channel.
        moment: fp32 [K, K], mean of x x^T.
        bits, group: of the weight's grid.

    Returns:
        fp32 [K], positive, its largest and smallest value reciprocal to each other.
    """
    best_error, best = torch.inf, torch.ones_like(magnitude)
    for step in range(GRID):
        scale = magnitude.clamp(min=SMALLEST) ** (step / GRID)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = sum(
            output_error(
                round_weight(weight * scale, bits, group, symmetric=False) / scale - weight, moment
            )
            for weight in weights
        )
        if error < best_error:
            best_error, best = error, scale
    return best


def output_error(difference: torch.Tensor, moment: torch.Tensor) -> float:
    """Mean squared error of a linear's output, summed over outputs: tr(D M D^T)."""
    return float((difference @ moment).mul_(difference).sum(dtype=torch.float64))


def clip_weight(
    weight: torch.Tensor, moment: torch.Tensor, bits: int, group: int | None
) -> torch.Tensor:
    """Each output channel's groups clamped to the magnitude that rounds best.

    Args:
        weight: fp32 [N, K], scaled.
        moment: fp32 [K, K], of the scaled input.
        bits, group: of the weight's grid.

    Returns:
        fp32 [N, K], not rounded yet.
    """
    size = group or weight.shape[1]
    starts = range(0, weight.shape[1], size)
    blocks = (moment[start : start + size, start : start + size] for start in starts)
    parts = zip(weight.split(size, dim=1), blocks, strict=True)
    return torch.cat([_clip_group(part, block, bits) for part, block in parts], dim=1)


def _clip_group(part: torch.Tensor, moment: torch.Tensor, bits: int) -> torch.Tensor:
    largest = part.abs().amax(dim=1, keepdim=True)
    least = torch.full_like(largest, torch.inf)
    best = largest.clone()
    for step in range(int(LARGEST_SHRINK * GRID)):
        limit = largest * (1 - step / GRID)
        difference = round_asymmetric(part.clamp(-limit, limit), bits) - part
        error = (difference @ moment).mul_(difference).sum(dim=1, keepdim=True)
        best = torch.where(error < least, limit, best)
        least = torch.minimum(error, least)
    return part.clamp(-best, best)


@dataclass(frozen=True)
class AWQ(Method):
    """Weights scaled, clipped and rounded to the nearest; activations as they are.

    Attributes:
        bits: of a weight.
        group: input channels that share a scale, None for an output channel.
        clip: search for the clipping too.
    """

    bits: int = 4
    group: int | None = 128
    clip: bool = True

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Scale each input where the division folds into what comes before, then round."""
        quantized = {}
        for name, watched in inputs.items():
            linears = {name: layer.get_submodule(name) for name in watched.group.linears}
            transforms = ()
            if name != "attn_out" or block.heads == block.kv_heads:
                weights = [linear.weight.detach().float() for linear in linears.values()]
                scale = search_scale(
                    weights, watched.mean_magnitude, watched.moment, self.bits, self.group
                )
                transforms = (Divide(scale),)
            for linear_name, linear in linears.items():
                weight = self._rounded(linear_name, linear, watched.moment, transforms)
                quantized[linear_name] = FakeLinear(
                    weight.to(linear.weight.dtype), linear.bias, transforms=transforms
                )
        return quantized

    def _rounded(
        self, name: str, linear: nn.Linear, moment: torch.Tensor, transforms: tuple[Divide, ...]
    ) -> torch.Tensor:
        weight = transformed_weight(linear.weight.detach(), transforms)
        for transform in transforms:
            moment = moment / transform.scale / transform.scale[:, None]
        if self.clip and not name.endswith(UNCLIPPED):
            weight = clip_weight(weight, moment, self.bits, self.group)
        return round_weight(weight, self.bits, self.group, symmetric=False)
