# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant (Xiao et al., ICML 2023): W8A8, difficulty moved from activations to weights.

Section 4, equation 3: Y = (X diag(s)^-1) (diag(s) W); equation 4:
s_j = max|X_j|^alpha / max|W_j|^(1 - alpha) for input channel j, with the largest activation over
calibration tokens and the largest weight over all linears that read the input. As in the authors'
code, inputs that follow a norm are smoothed, for only there the division folds into the layer
before. Activations are rounded per token and weights per output channel (level O1, with the finer
weight scale of the authors' LLaMA results); attention's own products stay in 16 bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from comet.methods.linear import ActivationGrid, Divide, FakeLinear, transformed_weight
from comet.methods.method import Block, LayerInput, Method
from comet.methods.rtn import round_weight
from comet.models.families import Family

SMALLEST = 1e-5


def migration_scale(
    absmax: torch.Tensor, weights: list[torch.Tensor], alpha: float
) -> torch.Tensor:
    """Equation 4.

    Args:
        absmax: fp32 [K], largest magnitude of each input channel.
        weights: [N, K] each, of all linears that read the input.
        alpha: share of the difficulty that moves to the weights, 0..1.

    Returns:
        fp32 [K], positive; what the input is divided by.
    """
    largest = torch.stack([weight.float().abs().amax(dim=0) for weight in weights]).amax(dim=0)
    largest = largest.clamp(min=SMALLEST)
    return (absmax.clamp(min=SMALLEST) ** alpha / largest ** (1 - alpha)).clamp(min=SMALLEST)


@dataclass(frozen=True)
class SmoothQuant(Method):
    """Smoothed, then rounded to the nearest.

    Attributes:
        alpha: migration strength.
        bits: of a weight and of an activation.
    """

    alpha: float = 0.5
    bits: int = 8

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Smooth the inputs that follow a norm and round every linear."""
        quantized = {}
        for watched in inputs.values():
            linears = {name: layer.get_submodule(name) for name in watched.group.linears}
            transforms = ()
            if watched.group.norm is not None:
                weights = [linear.weight.detach() for linear in linears.values()]
                transforms = (Divide(migration_scale(watched.absmax, weights, self.alpha)),)
            for name, linear in linears.items():
                weight = transformed_weight(linear.weight.detach(), transforms)
                rounded = round_weight(weight, self.bits, None).to(linear.weight.dtype)
                grid = ActivationGrid(bits=self.bits)
                quantized[name] = FakeLinear(rounded, linear.bias, grid, transforms)
        return quantized
