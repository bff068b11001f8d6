# SPDX-License-Identifier: Apache-2.0
"""QuaRot (Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", NeurIPS 2024).

Stage 1a (section 4): the residual stream is multiplied by a randomized Hadamard matrix Q. The scale
of each RMSNorm is folded into the linears behind it, which makes the norm commute with Q. Stage 1b:
the input of the MLP's second linear is rotated while the model runs. Stage 1c: V is rotated head by
head through the rows of its linear, and the attention's output by a whole Hadamard before the
output linear. Stage 1d: Q and K are rotated head by head after RoPE (``KVQuantization.hadamard``).
Stage 2 (sections 4.2 and 5): weights symmetric per output channel on a range found by a linear
search of the squared error, rounded by GPTQ or to the nearest; activations symmetric per token with
the range clipped to 0.9; KV asymmetric per token and head, clipped to 0.95.

Here the stream itself stays as it is: a linear that reads it divides by the norm's scale and
rotates, and one that writes to it has weights which were rounded in the rotated basis and turned
back. In exact arithmetic that is the same model. A norm with a bias or without a scale is not
folded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from comet.methods.linear import ActivationGrid, Divide, FakeLinear, transformed_weight
from comet.methods.method import Block, LayerInput, Method
from comet.methods.rotation import (
    block_rotation,
    transformed_moment,
    unscaled,
    whole_rotation,
)
from comet.methods.weight_grid import WeightGrid
from comet.models.families import Family, InputGroup

# The squared error of a range from the whole one down to a fifth of it.
SEARCHED = tuple(round(1 - 0.01 * step, 2) for step in range(80))
SEED = 0


@dataclass(frozen=True)
class QuaRot(Method):
    """Rotated weights, activations and KV cache, 4 bits each.

    Attributes:
        weights: how rotated weights are rounded.
        activations: how rotated inputs are rounded.
    """

    weights: WeightGrid = WeightGrid(
        group=None, symmetric=True, clip="mse", ratios=SEARCHED, rounding="gptq"
    )
    activations: ActivationGrid = ActivationGrid(bits=4, clip=0.9)

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Rotate and round every linear of the layer."""
        quantized = {}
        first = layer.get_submodule(family.linears[0]).weight
        stream = _stream_rotation(first.shape[1], first.device)
        head = (block_rotation(block.head_dim, first.device),)
        for seen in inputs.values():
            basis = _basis(layer, seen, stream)
            moment = transformed_moment(seen.moment, basis)
            # The values of attention arrive rotated head by head: turned back, then rotated whole.
            reads = (*head, *basis) if seen.group.name == "attn_out" else basis
            for name in seen.group.linears:
                after = ()
                if seen.group.norm is None:
                    after = stream
                elif name == _value_linear(seen.group):
                    after = head
                linear = layer.get_submodule(name)
                weight = _rotate_rows(transformed_weight(linear.weight.detach(), basis), after)
                restored = self.weights.restore(weight, moment)
                bias = linear.bias
                if after is head:
                    bias = None if bias is None else _rotate_rows(bias[:, None], head)[:, 0]
                else:
                    restored = _rotate_rows_back(restored, after)
                quantized[name] = FakeLinear(
                    restored.to(linear.weight.dtype), bias, self.activations, reads
                )
        return quantized


def _stream_rotation(size: int, device: torch.device) -> tuple[nn.Module, ...]:
    """The randomized Hadamard of the residual stream: random signs, then the rotation."""
    draw = torch.Generator().manual_seed(SEED)
    signs = torch.randint(0, 2, (size,), generator=draw) * 2.0 - 1.0
    return Divide(signs.to(device)), whole_rotation(size, device)


def _basis(
    layer: nn.Module, seen: LayerInput, stream: tuple[nn.Module, ...]
) -> tuple[nn.Module, ...]:
    """What turns a linear's input into the rotated one that QuaRot rounds."""
    if seen.group.norm is None:
        return (whole_rotation(len(seen.absmax), seen.absmax.device),)
    return (*unscaled(layer.get_submodule(seen.group.norm)), *stream)


def _value_linear(group: InputGroup) -> str | None:
    return group.linears[-1] if group.name == "attn_in" else None


def _rotate_rows(weight: torch.Tensor, transforms: tuple[nn.Module, ...]) -> torch.Tensor:
    """[N, K] whose product is what the transforms make of the old product."""
    for transform in transforms:
        weight = transform.activations(weight.t()).t()
    return weight.contiguous()


def _rotate_rows_back(weight: torch.Tensor, transforms: tuple[nn.Module, ...]) -> torch.Tensor:
    """Inverse of ``_rotate_rows`` for signs and rotations."""
    if not transforms:
        return weight
    size = weight.shape[0]
    matrix = _rotate_rows(torch.eye(size, device=weight.device), transforms)
    return matrix.t() @ weight
