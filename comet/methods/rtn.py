# SPDX-License-Identifier: Apache-2.0
"""Round-to-nearest: the plain baseline of every table."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from comet.methods.linear import ActivationGrid, FakeLinear, round_asymmetric
from comet.methods.method import Block, LayerInput, Method
from comet.models.families import Family


def round_weight(
    weight: torch.Tensor, bits: int, group: int | None, symmetric: bool = True
) -> torch.Tensor:
    """Round a weight [N, K] to the nearest and restore it to its own type.

    Args:
        weight: [N, K].
        bits: 2..8.
        group: input channels that share a scale; None means one scale per output channel. A last
            group may be shorter.
        symmetric: codes -2^(bits-1) .. 2^(bits-1)-1; else an integer zero point.
    """
    parts = weight.float().split(group or weight.shape[1], dim=1)
    restore = _symmetric if symmetric else round_asymmetric
    return torch.cat([restore(part, bits) for part in parts], dim=1).to(weight.dtype)


def _symmetric(part: torch.Tensor, bits: int) -> torch.Tensor:
    largest = 2 ** (bits - 1) - 1
    scale = part.abs().amax(dim=1, keepdim=True) / largest
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (part / scale).round().clamp(-largest - 1, largest) * scale


@dataclass(frozen=True)
class RoundToNearest(Method):
    """Weights and activations rounded to the nearest, nothing else.

    Attributes:
        weight_bits: of a weight.
        weight_group: input channels that share a scale, None for an output channel.
        weight_symmetric: no zero point.
        activations: how inputs are rounded.
    """

    weight_bits: int = 4
    weight_group: int | None = 128
    weight_symmetric: bool = True
    activations: ActivationGrid = ActivationGrid()

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Round every linear of the layer."""
        return {name: self._quantize(layer.get_submodule(name)) for name in family.linears}

    def _quantize(self, linear: nn.Linear) -> FakeLinear:
        weight = round_weight(
            linear.weight.detach(), self.weight_bits, self.weight_group, self.weight_symmetric
        )
        return FakeLinear(weight, linear.bias, self.activations)
