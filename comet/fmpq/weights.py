# SPDX-License-Identifier: Apache-2.0
"""INT4 weights by round-to-nearest with a clip search (FMPQ, step 4).

The paper quantizes weights with OmniQuant's learned clipping. Here the clip ratio of each group is
searched on a grid; the objective weighs each input channel's squared weight error by E[x^2], which
is the output error of the layer when channels are uncorrelated.
"""

from dataclasses import dataclass

import torch

from comet.fmpq.options import FMPQOptions
from comet.formats.activations import hadamard
from comet.formats.blocks import BLOCK, BlockLayout, gather_channels
from comet.formats.weights import MAX_GROUP_SCALE, PackedWeight, pack_weight

CLIP_RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
# Small enough that the temporaries of a slice stay in the cache of a CPU.
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class _Grid:
    """Candidate grid of each group: scale = ``scale``, codes offset by ``zero``."""

    group_scale: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor


def quantize_weight(
    weight: torch.Tensor,
    mean_square: torch.Tensor,
    layout: BlockLayout,
    permutation: torch.Tensor,
    options: FMPQOptions,
) -> PackedWeight:
    """Quantize one linear layer's weight to INT4 in groups that coincide with the blocks.

    Args:
        weight: [N, K], any float type, channels in natural order.
        mean_square: fp32 [K], E[x^2] of each input channel over calibration tokens.
        layout: blocks of K.
        permutation: int32 [K padded].
        options: clip objective, scale kind, symmetry, Hadamard.
    """
    importance = _importance(mean_square, layout, permutation, options).to(weight.device)
    rows = [
        _quantize_rows(_groups(part, layout, permutation, options), importance, options)
        for part in weight.split(ROWS_AT_ONCE)
    ]
    codes, group_scale, group_zero, channel_scale = (
        torch.cat(part) for part in zip(*rows, strict=True)
    )
    return pack_weight(
        layout,
        permutation,
        codes.flatten(1),
        group_scale,
        group_zero,
        channel_scale,
        options.weight_scale,
        options.act_hadamard,
    )


def _groups(
    weight: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor, options: FMPQOptions
) -> torch.Tensor:
    """fp32 [N, B, 128] in permuted order, INT4 blocks rotated if the activations will be."""
    groups = gather_channels(weight.float(), permutation).view(-1, layout.blocks, BLOCK)
    if options.act_hadamard:
        rotated = hadamard(groups[:, : layout.int4_blocks])
        groups = torch.cat((rotated, groups[:, layout.int4_blocks :]), dim=1)
    return groups


def _importance(
    mean_square: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor, options: FMPQOptions
) -> torch.Tensor:
    """fp32 [B, 128]: what a squared weight error of each channel costs."""
    if options.weight_clip == "mse":
        mean_square = torch.ones_like(mean_square)
    importance = gather_channels(mean_square.float(), permutation).view(layout.blocks, BLOCK)
    if options.act_hadamard:
        # A Hadamard spreads the energy of a block evenly over its channels.
        spread = importance.mean(dim=1, keepdim=True).expand_as(importance)
        importance = torch.cat((spread[: layout.int4_blocks], importance[layout.int4_blocks :]))
    return importance


def _quantize_rows(
    groups: torch.Tensor, importance: torch.Tensor, options: FMPQOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """codes uint8 [n, B, 128], group_scale [n, B], group_zero [n, B], channel_scale fp32 [n]."""
    low, high = _ranges(groups, options)
    channel_scale = _channel_scale(low, high, groups, options)
    ratios = CLIP_RATIOS if options.weight_clip != "none" else (1.0,)
    best_error = torch.full(low.shape, torch.inf, device=groups.device)
    best_ratio = torch.ones_like(low)
    for ratio in ratios:
        error = _error(groups, _grid(low * ratio, high * ratio, channel_scale, options), importance)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_ratio = best_ratio.masked_fill(better, ratio)
    grid = _grid(low * best_ratio, high * best_ratio, channel_scale, options)
    codes = _encode(groups, grid).to(torch.uint8)
    return codes, grid.group_scale, grid.zero.to(torch.uint8), channel_scale


def _error(groups: torch.Tensor, grid: _Grid, importance: torch.Tensor) -> torch.Tensor:
    """fp32 [n, B]: squared weight error of each group, weighted by the importance of channels."""
    residual = _encode(groups, grid).sub_(grid.zero[..., None]).mul_(grid.scale[..., None])
    residual.sub_(groups).square_()
    return torch.einsum("nbc,bc->nb", residual, importance)


def _ranges(groups: torch.Tensor, options: FMPQOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest value of each group, zero included; symmetric ranges are -8/7 m .. m."""
    if options.weight_symmetric:
        high = groups.abs().amax(dim=2)
        return -high * (8 / 7), high
    return groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)


def _channel_scale(
    low: torch.Tensor, high: torch.Tensor, groups: torch.Tensor, options: FMPQOptions
) -> torch.Tensor:
    """fp32 [n]: one per channel; the widest group gets the integer 17 and 8 bits hold all."""
    if options.weight_scale == "group_fp":
        return torch.ones(groups.shape[0], device=groups.device)
    widest = ((high - low) / 15).amax(dim=1) / MAX_GROUP_SCALE
    largest = groups.abs().amax(dim=(1, 2)) / 127
    scale = torch.maximum(widest, largest)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _grid(
    low: torch.Tensor, high: torch.Tensor, channel_scale: torch.Tensor, options: FMPQOptions
) -> _Grid:
    wanted = (high - low) / 15
    if options.weight_scale == "group_int":
        group_scale = (wanted / channel_scale[:, None]).round().clamp(1, MAX_GROUP_SCALE)
        scale = group_scale * channel_scale[:, None]
        group_scale = group_scale.to(torch.uint8)
    else:
        group_scale = torch.where(wanted > 0, wanted, torch.ones_like(wanted)).to(torch.float16)
        group_scale = group_scale.clamp(min=torch.finfo(torch.float16).smallest_normal)
        scale = group_scale.float()
    zero = (-low / scale).round().clamp(0, 15)
    if options.weight_symmetric:
        zero = torch.full_like(zero, 8)
    return _Grid(group_scale, scale, zero)


def _encode(groups: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """fp32 codes 0..15, kept where ``group_scale * (u - z)`` fits int8."""
    codes = (groups / grid.scale[..., None]).round_().add_(grid.zero[..., None])
    if grid.group_scale.dtype == torch.float16:
        return codes.clamp_(0, 15)
    step = grid.group_scale.float()
    lowest = (grid.zero - (128 / step).floor()).clamp_(min=0)
    highest = (grid.zero + (127 / step).floor()).clamp_(max=15)
    return codes.clamp_(lowest[..., None], highest[..., None])
