# SPDX-License-Identifier: Apache-2.0
"""INT4 weights: a clip search for the grid, then rounding on it (FMPQ, step 4).

The paper quantizes weights with OmniQuant's learned clipping, which is an option
(``comet.fmpq.learned_clip``). By default the clip ratio of each group is searched; the objective
weighs each input channel's squared weight error by E[x^2], which is the output error of the layer
when channels are uncorrelated. Codes are then rounded to the nearest, or by GPTQ, which takes
correlations into account.
"""

from dataclasses import dataclass

import torch

from comet.fmpq.gptq import gptq_codes
from comet.fmpq.learned_clip import learned_range
from comet.fmpq.noise import noise_fit
from comet.fmpq.options import FMPQOptions
from comet.formats.activations import hadamard
from comet.formats.blocks import BLOCK, BlockLayout, gather_channels
from comet.formats.weights import MAX_GROUP_SCALE, PackedWeight, pack_weight

CLIP_RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
# Small enough that the temporaries of a slice stay in the cache of a CPU.
ROWS_AT_ONCE = 256
# Large enough that a GPU computes for longer than it takes to launch.
GPU_WEIGHTS_AT_ONCE = 1 << 22
GPTQ_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class _Grid:
    """Grid of each group, [n, B]: value = (code - zero) * scale, code in lowest..highest."""

    group_scale: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    lowest: torch.Tensor
    highest: torch.Tensor

    def each(self, name: str) -> torch.Tensor:
        """A field spread over the weights of its groups, fp32 [n, B * 128]."""
        return getattr(self, name).float().repeat_interleave(BLOCK, dim=1)


def quantize_weight(
    weight: torch.Tensor,
    second_moment: torch.Tensor,
    layout: BlockLayout,
    permutation: torch.Tensor,
    options: FMPQOptions,
    noise: torch.Tensor | None = None,
) -> PackedWeight:
    """Quantize one linear layer's weight to INT4 in groups that coincide with the blocks.

    Args:
        weight: [N, K], any float type, channels in natural order.
        second_moment: fp32 [K, K], mean of x x^T over calibration tokens, or its diagonal [K]
            where codes are rounded to the nearest.
        layout: blocks of K.
        permutation: int32 [K padded].
        options: clip objective, rounding, scale kind, symmetry, Hadamard.
        noise: fp32 [K padded], variance of the rounding error of activations that the weight is
            fitted to, in the order of the blocks; None for 16-bit activations.

    Raises:
        ValueError: GPTQ was asked for and only the diagonal is there.
    """
    moment = _ordered_moment(second_moment.to(weight.device), layout, permutation, options)
    if options.correlations and moment.dim() != 2:
        raise ValueError("GPTQ and learned clipping need the whole second moment of the inputs")
    fit = None
    if noise is not None:
        fit, moment = noise_fit(moment, noise.to(weight.device))
    importance = _importance(moment, layout, options)
    rows = []
    at_once = rows_at_once(weight) if options.weight_rounding == "nearest" else GPTQ_ROWS_AT_ONCE
    for part in weight.split(at_once):
        groups = _groups(part, layout, permutation, options)
        if fit is not None:
            groups = (groups.flatten(1) @ fit).view(groups.shape)
        rows.append(_quantize_rows(groups, importance, moment, options))
    fields = (torch.cat(part) for part in zip(*rows, strict=True))
    codes, group_scale, group_zero, channel_scale = fields
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


def rows_at_once(weight: torch.Tensor) -> int:
    """Rows of [N, ...] that a search of grids takes at a time. (GPTQ takes as many as memory likes:
    it walks columns in Python.)"""
    if not weight.is_cuda:
        return ROWS_AT_ONCE
    return max(ROWS_AT_ONCE, GPU_WEIGHTS_AT_ONCE // weight[0].numel())


def _groups(
    weight: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor, options: FMPQOptions
) -> torch.Tensor:
    """fp32 [N, B, 128] in permuted order, INT4 blocks rotated if the activations will be."""
    groups = gather_channels(weight.float(), permutation).view(-1, layout.blocks, BLOCK)
    if options.act_hadamard:
        rotated = hadamard(groups[:, : layout.int4_blocks])
        groups = torch.cat((rotated, groups[:, layout.int4_blocks :]), dim=1)
    return groups


def _ordered_moment(
    moment: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor, options: FMPQOptions
) -> torch.Tensor:
    """The second moment as the weight's columns are stored: [K padded] or [K padded, K padded]."""
    moment = gather_channels(moment.float(), permutation)
    if moment.dim() == 2:
        moment = gather_channels(moment.t().contiguous(), permutation)
    if not options.act_hadamard:
        return moment
    if moment.dim() == 1:
        # A Hadamard spreads the energy of a block evenly over its channels.
        blocks = moment.view(layout.blocks, BLOCK)
        spread = blocks.mean(dim=1, keepdim=True).expand_as(blocks)
        return torch.cat((spread[: layout.int4_blocks], blocks[layout.int4_blocks :])).flatten()
    for _ in range(2):
        rows = moment.view(moment.shape[0], layout.blocks, BLOCK)
        rotated = hadamard(rows[:, : layout.int4_blocks])
        rows = torch.cat((rotated, rows[:, layout.int4_blocks :]), dim=1)
        moment = rows.flatten(1).t().contiguous()
    return moment


def _importance(moment: torch.Tensor, layout: BlockLayout, options: FMPQOptions) -> torch.Tensor:
    """fp32 [B, 128]: what a squared weight error of each channel costs."""
    importance = moment.diagonal() if moment.dim() == 2 else moment
    if options.weight_clip == "mse":
        importance = (importance > 0).float()
    return importance.reshape(layout.blocks, BLOCK)


def _quantize_rows(
    groups: torch.Tensor, importance: torch.Tensor, moment: torch.Tensor, options: FMPQOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """codes uint8 [n, B, 128], group_scale [n, B], group_zero [n, B], channel_scale fp32 [n]."""
    parts = groups.split(rows_at_once(groups))
    searched = [_search_grid(part, importance, moment, options) for part in parts]
    grids, channel_scales = zip(*searched, strict=True)
    grid = _Grid(*(torch.cat(field) for field in zip(*map(_fields, grids), strict=True)))
    if options.weight_rounding == "gptq":
        each = (grid.each(name) for name in ("scale", "zero", "lowest", "highest"))
        codes = gptq_codes(groups.flatten(1), moment, *each).view(groups.shape)
    else:
        codes = _encode(groups, grid)
    fields = codes.to(torch.uint8), grid.group_scale, grid.zero.to(torch.uint8)
    return *fields, torch.cat(channel_scales)


def _fields(grid: _Grid) -> tuple[torch.Tensor, ...]:
    return grid.group_scale, grid.scale, grid.zero, grid.lowest, grid.highest


def _search_grid(
    groups: torch.Tensor, importance: torch.Tensor, moment: torch.Tensor, options: FMPQOptions
) -> tuple[_Grid, torch.Tensor]:
    """The grid of each group with the least weighted error, and the channel scales fp32 [n]."""
    low, high = _ranges(groups, options)
    channel_scale = _channel_scale(low, high, groups, options)
    if options.weight_clip == "learned":
        low, high = learned_range(groups, low, high, moment, options.weight_symmetric)
        return _grid(low, high, channel_scale, options), channel_scale
    ratios = CLIP_RATIOS if options.weight_clip != "none" else (1.0,)
    best_error = torch.full(low.shape, torch.inf, device=groups.device)
    best_ratio = torch.ones_like(low)
    for ratio in ratios:
        error = _error(groups, _grid(low * ratio, high * ratio, channel_scale, options), importance)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_ratio = best_ratio.masked_fill(better, ratio)
    return _grid(low * best_ratio, high * best_ratio, channel_scale, options), channel_scale


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
    lowest, highest = torch.zeros_like(zero), torch.full_like(zero, 15)
    if options.weight_scale == "group_int":
        # s * (u - z) has to fit int8.
        step = group_scale.float()
        lowest = (zero - (128 / step).floor()).clamp_(min=0)
        highest = (zero + (127 / step).floor()).clamp_(max=15)
    return _Grid(group_scale, scale, zero, lowest, highest)


def _encode(groups: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """fp32 codes by rounding to the nearest."""
    codes = (groups / grid.scale[..., None]).round_().add_(grid.zero[..., None])
    return codes.clamp_(grid.lowest[..., None], grid.highest[..., None])
