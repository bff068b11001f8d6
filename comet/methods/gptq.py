# SPDX-License-Identifier: Apache-2.0
"""GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization", ICLR 2023), weights only.

Section 3.3, algorithm 1: columns are rounded one after another, and the error of each is spread
over the open ones (equation 2) by the inverse Hessian H^-1 = (2 X X^T + lambda I)^-1; lambda is
1 % of the mean of the diagonal ("Step 3"). The Hessian of a linear is the second moment of its
input up to a factor that cancels. Layers are calibrated on the outputs of the layers before them
as quantized (section 4). Act-order and symmetric grids are later additions of the authors' code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from comet.errors import UserError
from comet.fmpq.gptq import COLUMNS_AT_ONCE, DAMPING, Grid, fixed_grid, walk_columns
from comet.methods.linear import FakeLinear
from comet.methods.method import Block, LayerInput, Method
from comet.models.families import Family

GROUPINGS = ("natural", "walk")


def gptq_weight(
    weight: torch.Tensor,
    moment: torch.Tensor,
    bits: int = 4,
    group: int | None = 128,
    symmetric: bool = False,
    act_order: bool = True,
    grouping: str = "natural",
    damping: float = DAMPING,
) -> torch.Tensor:
    """Round a weight and restore it.

    Args:
        weight: [N, K].
        moment: fp32 [K, K], mean of x x^T over calibration tokens.
        bits, group, symmetric, act_order, grouping, damping: as of ``GPTQ``.

    Returns:
        fp32 [N, K].
    """
    weight = weight.float()
    grid, at_once = _natural_groups(weight, bits, group, symmetric), COLUMNS_AT_ONCE
    if grouping == "walk" and group:
        grid, at_once = (lambda _, columns: min_max_grid(columns, bits, symmetric)), group
    return walk_columns(weight, moment, grid, damping, act_order, at_once)[1]


def _natural_groups(weight: torch.Tensor, bits: int, group: int | None, symmetric: bool) -> Grid:
    parts = weight.split(group or weight.shape[1], dim=1)
    grids = [
        [field.expand(part.shape) for field in min_max_grid(part, bits, symmetric)]
        for part in parts
    ]
    return fixed_grid(*(torch.cat(fields, dim=1) for fields in zip(*grids, strict=True)))


def min_max_grid(
    part: torch.Tensor, bits: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale, zero, lowest and highest code of each row of fp32 [N, n], each [N, 1].

    Codes are 0 .. 2^bits - 1. A symmetric range is +-absmax around the code 2^(bits-1), as in the
    authors' code; else the range of the weights and zero.
    """
    levels = 2**bits - 1
    low = part.amin(dim=1, keepdim=True).clamp(max=0)
    high = part.amax(dim=1, keepdim=True).clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scale = (high - low) / levels
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    zero = torch.full_like(scale, 2 ** (bits - 1)) if symmetric else (-low / scale).round()
    return scale, zero, torch.zeros_like(zero), torch.full_like(zero, levels)


@dataclass(frozen=True)
class GPTQ(Method):
    """Weights rounded by GPTQ, activations as they are.

    Attributes:
        bits: of a weight.
        group: input channels that share a scale, None for an output channel. A last group may be
            shorter.
        symmetric: no zero point.
        act_order: columns in falling order of the Hessian's diagonal.
        grouping: ``natural`` groups channels as they stand and fixes their grids before the walk
            ("static groups"), so that a plain group-wise kernel runs the result; ``walk`` groups
            channels in the order of the walk and finds each grid when the walk reaches it, on
            weights that hold the errors spread so far (section 4). With act-order its groups need
            a gather. One grid an output channel is fixed beforehand under both.
        damping: lambda as a share of the mean of the Hessian's diagonal.
    """

    sequential: bool = field(default=True, kw_only=True)
    bits: int = 4
    group: int | None = 128
    symmetric: bool = False
    act_order: bool = True
    grouping: str = "natural"
    damping: float = DAMPING

    def __post_init__(self) -> None:
        if self.grouping not in GROUPINGS:
            raise UserError(
                f"GPTQ: grouping is {self.grouping!r}; use one of {', '.join(GROUPINGS)}"
            )

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Round every linear of the layer on the second moment of its input."""
        quantized = {}
        for watched in inputs.values():
            for name in watched.group.linears:
                linear = layer.get_submodule(name)
                weight = gptq_weight(
                    linear.weight.detach(),
                    watched.moment,
                    self.bits,
                    self.group,
                    self.symmetric,
                    self.act_order,
                    self.grouping,
                    self.damping,
                )
                quantized[name] = FakeLinear(weight.to(linear.weight.dtype), linear.bias)
        return quantized
