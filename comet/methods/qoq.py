# SPDX-License-Identifier: Apache-2.0
"""QoQ (Lin et al., "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving").

MLSys 2025, arXiv 2405.04532. Section 4.1, progressive group quantization (equations 5 to 8):
weights are first rounded to INT8, symmetric per output channel within the protective range +-119,
then the INT8 codes of a group to unsigned INT4 with an integer scale and zero point, so that what
INT4 restores to is INT8 again. Per output channel without groups: asymmetric INT4. Section 4.2,
SmoothAttention (equations 9 to 11): K is divided and Q multiplied by lambda_i = max |K_i|^alpha,
alpha = 0.5, equal within the pairs (i, i + D/2) that RoPE turns, so that it folds into the linears.
Section 4.3: the inputs of a block (after a norm) are rotated by a Hadamard; its outputs (before the
output linears) are smoothed with a migration strength near 0, and where weights have groups,
reordered by their magnitude; the range of weights is found by a grid search. Activations INT8 per
token, KV4 per token and head, asymmetric. The authors' configurations also round weights by GPTQ.

Two deviations: the search minimizes the squared weight error weighted by E[x^2], which is the
output error of uncorrelated channels, for Q and K too; and lambda is taken from the magnitude
sqrt(k_i^2 + k_{i+D/2}^2) before RoPE, which RoPE cannot change. A model that normalizes Q and K
behind the linears (Qwen3) keeps them unsmoothed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from comet.fmpq.gptq import Grid, fixed_grid, walk_columns
from comet.methods.linear import ActivationGrid, Divide, FakeLinear, Gather, transformed_weight
from comet.methods.method import Block, LayerInput, Method
from comet.methods.rotation import transformed_moment, unscaled, whole_rotation
from comet.methods.weight_grid import WeightGrid
from comet.models.families import Family

PROTECTIVE = 119
LEVELS = 15


@dataclass(frozen=True)
class QoQ(Method):
    """Progressive INT4 weights and INT8 activations.

    Attributes:
        group: input channels that share the second scale; None means one scale per output channel.
        attention_strength: alpha of SmoothAttention.
        output_strength: migration strength of block outputs.
        rounding: ``gptq`` on the grid that the search found, or ``nearest``.
        activations: how inputs are rounded.
    """

    group: int | None = 128
    attention_strength: float = 0.5
    output_strength: float = 0.05
    rounding: str = "gptq"
    activations: ActivationGrid = ActivationGrid(bits=8)

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Smooth, rotate and round every linear of the layer."""
        smooth_attention(layer, inputs["attn_in"], block, self.attention_strength)
        quantized = {}
        for seen in inputs.values():
            transforms = self._transforms(layer, seen, block)
            moment = transformed_moment(seen.moment, transforms)
            for name in seen.group.linears:
                linear = layer.get_submodule(name)
                weight = transformed_weight(linear.weight.detach(), transforms)
                restored = self._restore(weight, moment).to(linear.weight.dtype)
                quantized[name] = FakeLinear(restored, linear.bias, self.activations, transforms)
        return quantized

    def _transforms(
        self, layer: nn.Module, seen: LayerInput, block: Block
    ) -> tuple[nn.Module, ...]:
        if seen.group.norm is not None:
            norm = layer.get_submodule(seen.group.norm)
            return (*unscaled(norm), whole_rotation(len(seen.absmax), seen.absmax.device))
        weight = layer.get_submodule(seen.group.linears[0]).weight.detach().float()
        largest, size = seen.absmax, weight.abs().amax(dim=0)
        if seen.group.name == "attn_out":
            largest, size = (_over_query_heads(part, block) for part in (largest, size))
        factor = migration(largest, size, self.output_strength)
        if self.group is None:
            return (Divide(factor),)
        order = (seen.absmax / factor).argsort(descending=True, stable=True)
        return Divide(factor), Gather(order)

    def _restore(self, weight: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return WeightGrid(group=None, rounding=self.rounding).restore(weight, moment)
        return progressive(weight, moment, self.group, self.rounding)


def smooth_attention(layer: nn.Module, seen: LayerInput, block: Block, strength: float) -> None:
    """Move the outliers of K to Q through the rows of both linears; the scores stay the same."""
    attention = layer.get_submodule(seen.group.linears[0].rpartition(".")[0])
    if getattr(attention, "k_norm", None) is not None:
        return
    query, key = (layer.get_submodule(name) for name in seen.group.linears[:2])
    keys = nn.functional.linear(seen.sample.to(key.weight.dtype), key.weight, key.bias).float()
    factor = key_factors(keys.unflatten(-1, (block.kv_heads, block.head_dim)), strength)
    repeated = factor.repeat_interleave(block.heads // block.kv_heads, dim=0).flatten()
    _scale_rows(key, 1 / factor.flatten())
    _scale_rows(query, repeated)


def key_factors(keys: torch.Tensor, strength: float) -> torch.Tensor:
    """lambda of each channel of K, fp32 [kv_heads, D].

    Args:
        keys: fp32 [tokens, kv_heads, D], before RoPE.
    """
    first, second = keys.chunk(2, dim=-1)
    largest = torch.hypot(first, second).amax(dim=0).clamp(min=1e-5)
    return torch.cat((largest, largest), dim=-1) ** strength


def _scale_rows(linear: nn.Linear, factor: torch.Tensor) -> None:
    factor = factor.to(linear.weight.dtype)
    linear.weight.data = linear.weight.data * factor[:, None]
    if linear.bias is not None:
        linear.bias.data = linear.bias.data * factor


def _over_query_heads(largest: torch.Tensor, block: Block) -> torch.Tensor:
    """The largest over the query heads that read one value head, whose linear takes the scale."""
    heads = largest.view(block.kv_heads, -1, block.head_dim)
    return heads.amax(dim=1, keepdim=True).expand_as(heads).reshape(-1)


def migration(absmax: torch.Tensor, size: torch.Tensor, strength: float) -> torch.Tensor:
    """SmoothQuant's scale of each channel, fp32 [K]: max |x|^a / max |w|^(1 - a)."""
    return absmax.clamp(min=1e-5) ** strength / size.clamp(min=1e-5) ** (1 - strength)


def progressive(
    weight: torch.Tensor, moment: torch.Tensor, group: int, rounding: str = "nearest"
) -> torch.Tensor:
    """Progressive group quantization: what W4 restores to, fp32 [N, K].

    Args:
        weight: fp32 [N, K].
        moment: fp32 [K, K], mean of x x^T of what the weight multiplies.
        group: input channels that share the integer scale.
        rounding: ``nearest`` or ``gptq``.
    """
    energy, best, least = moment.diagonal(), None, None
    for ratio in WeightGrid().ratios:
        grid = progressive_grid(weight, group, ratio)
        error = _group_errors(through_int8(weight, *grid) - weight, energy, group)
        if best is None:
            best, least = grid, error
        better = (error < least).repeat_interleave(group, dim=1)[:, : weight.shape[1]]
        best = tuple(torch.where(better, new, old) for new, old in zip(grid, best, strict=True))
        least = torch.minimum(least, error)
    if rounding == "nearest":
        return through_int8(weight, *best)
    return walk_columns(weight, moment, _as_walk_grid(*best))[1]


def progressive_grid(
    weight: torch.Tensor, group: int, ratio: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale of INT8 fp32 [N, 1] spread over K; integer scale and zero point of INT4; all [N, K]."""
    scale = weight.abs().amax(dim=1, keepdim=True) / PROTECTIVE
    scale = torch.where(scale > 0, scale, torch.ones_like(scale)).expand(weight.shape)
    parts = (weight / scale).round().split(group, dim=1)
    lows = [part.amin(dim=1, keepdim=True).clamp(max=0) * ratio for part in parts]
    highs = [part.amax(dim=1, keepdim=True).clamp(min=0) * ratio for part in parts]
    steps = [
        ((high - low) / LEVELS).round().clamp(min=1) for low, high in zip(lows, highs, strict=True)
    ]
    zeros = [(-low / step).round().clamp(0, LEVELS) for low, step in zip(lows, steps, strict=True)]
    spread = (
        torch.cat([field.expand(part.shape) for field, part in zip(fields, parts, strict=True)], 1)
        for fields in (steps, zeros)
    )
    return scale, *spread


def through_int8(
    weight: torch.Tensor, scale: torch.Tensor, step: torch.Tensor, zero: torch.Tensor
) -> torch.Tensor:
    """Equations 5 to 8: to INT8 codes, from these to INT4, and back through both scales."""
    wide = (weight / scale).round().clamp(-PROTECTIVE, PROTECTIVE)
    codes = ((wide / step).round() + zero).clamp(0, LEVELS)
    return (codes - zero) * step * scale


def _as_walk_grid(scale: torch.Tensor, step: torch.Tensor, zero: torch.Tensor) -> Grid:
    return fixed_grid(scale * step, zero, torch.zeros_like(zero), torch.full_like(zero, LEVELS))


def _group_errors(difference: torch.Tensor, energy: torch.Tensor, group: int) -> torch.Tensor:
    """fp32 [N, groups]."""
    weighted = difference.square_() * energy
    return torch.stack([part.sum(dim=1) for part in weighted.split(group, dim=1)], dim=1)
