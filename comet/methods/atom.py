# SPDX-License-Identifier: Apache-2.0
"""Atom (Zhao et al., "Atom: Low-bit Quantization for Efficient and Accurate LLM Serving").

MLSys 2024, arXiv 2310.19102. Section 4.1: 128 outlier channels of every input, those with the
largest sum of squares over the calibration text, are reordered to the end and kept in INT8, in
activations and in weights. Section 4.2: the others are INT4 in groups of 128, symmetric. Section
4.3: activation scales are found while the model runs. Section 4.4: K and V asymmetric INT4 per
token and head. Section 5.1: weights are rounded by GPTQ; ranges are clipped to 0.85 (weights) and
0.9 (activations).

The authors' code lets a symmetric activation take the code -8; here codes are within +-7. The share
of INT8 follows from the model: 128 of 576 channels are 22 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from comet.methods.linear import ActivationGrid, FakeLinear, Gather
from comet.methods.method import Block, LayerInput, Method
from comet.methods.rotation import transformed_moment
from comet.methods.weight_grid import WeightGrid
from comet.models.families import Family


@dataclass(frozen=True)
class Atom(Method):
    """INT4 weights and activations beside a fixed number of INT8 outlier channels.

    Attributes:
        outliers: channels of an input that are kept in INT8; at most half of it.
        weights: how the other weights are rounded.
        activations: how the other channels of an input are rounded.
    """

    outliers: int = 128
    weights: WeightGrid = WeightGrid(symmetric=True, clip="none", ratio=0.85, rounding="gptq")
    activations: ActivationGrid = ActivationGrid(bits=4, group=128, clip=0.9)

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Reorder and round every linear of the layer."""
        quantized = {}
        for seen in inputs.values():
            energy = seen.moment.diagonal()
            outliers = min(self.outliers, len(energy) // 2)
            gather = Gather(outliers_last(energy, outliers))
            moment = transformed_moment(seen.moment, (gather,))
            activations = replace(self.activations, int8_channels=outliers)
            for name in seen.group.linears:
                linear = layer.get_submodule(name)
                weight = gather.weight(linear.weight.detach().float())
                restored = self._restore(weight, moment, outliers).to(linear.weight.dtype)
                quantized[name] = FakeLinear(restored, linear.bias, activations, (gather,))
        return quantized

    def _restore(self, weight: torch.Tensor, moment: torch.Tensor, outliers: int) -> torch.Tensor:
        """Both precisions in one walk, so that the INT4 errors are spread over INT8 columns too."""
        normal = weight.shape[1] - outliers
        wide = replace(self.weights, bits=8, group=None, symmetric=True, clip="none", ratio=1.0)
        energy = moment.diagonal()
        parts = [self.weights.grid(weight[:, :normal], energy[:normal])]
        if outliers:
            parts.append(wide.grid(weight[:, normal:], energy[normal:]))
        grid = tuple(torch.cat(fields, dim=1) for fields in zip(*parts, strict=True))
        return self.weights.round_on(grid, weight, moment)


def outliers_last(energy: torch.Tensor, outliers: int) -> torch.Tensor:
    """int64 [K]: the channels of least energy in their natural order, then the outliers."""
    ranked = energy.argsort(stable=True)
    normal = ranked[: len(energy) - outliers].sort().values
    return torch.cat((normal, ranked[len(energy) - outliers :]))
