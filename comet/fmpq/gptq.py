# SPDX-License-Identifier: Apache-2.0
"""GPTQ rounding (Frantar et al., ICLR 2023, algorithm 1).

Columns are rounded one after another; the error of each is spread over the columns that are still
open, by the inverse of the inputs' second moment. Where the grid comes from is the caller's choice:
FMPQ fixes it beforehand by its clip search, the paper finds it group by group during the walk.
"""

from collections.abc import Callable

import torch

DAMPING = 0.01
COLUMNS_AT_ONCE = 128

Grid = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def gptq_codes(
    weight: torch.Tensor,
    second_moment: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    lowest: torch.Tensor,
    highest: torch.Tensor,
) -> torch.Tensor:
    """Codes on a grid that is fixed beforehand, columns in falling order of their second moment.

    Args:
        weight: fp32 [N, K].
        second_moment: fp32 [K, K], mean of x x^T over calibration tokens, in the order of the
            weight's columns; channels that never fire have a zero row.
        scale, zero, lowest, highest: fp32 [N, K], grid and code range of each weight.

    Returns:
        fp32 [N, K] integer codes.
    """
    parts = (scale, zero, lowest, highest)
    return walk_columns(weight, second_moment, fixed_grid(*parts))[0]


def fixed_grid(*parts: torch.Tensor) -> Grid:
    """Scale, zero, lowest and highest code of each weight, fp32 [N, K], whatever the walk did."""
    return lambda columns, _: tuple(part[:, columns] for part in parts)


def walk_columns(
    weight: torch.Tensor,
    second_moment: torch.Tensor,
    grid: Grid,
    damping: float = DAMPING,
    act_order: bool = True,
    columns_at_once: int = COLUMNS_AT_ONCE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a weight column by column, each error spread over the open columns.

    Args:
        weight: fp32 [N, K].
        second_moment: fp32 [K, K], as of ``gptq_codes``.
        grid: called when the walk comes to the next columns, with their numbers int64 [n] and
            their weights fp32 [N, n], which hold the errors spread so far; returns scale, zero,
            lowest and highest code of each weight, fp32, [N, n] or what broadcasts to it.
        damping: share of the mean of the second moment's diagonal that is added to it.
        act_order: columns in falling order of their second moment, else as they stand.
        columns_at_once: n; a last block may be smaller.

    Returns:
        fp32 [N, K] integer codes, and the weight that they restore to.
    """
    order = torch.arange(weight.shape[1], device=weight.device)
    if act_order:
        order = second_moment.diagonal().argsort(descending=True, stable=True)
    factor = _inverse_factor(second_moment[order][:, order], damping)
    open_weight = weight[:, order].clone()
    codes = torch.empty_like(open_weight)
    for start in range(0, weight.shape[1], columns_at_once):
        end = min(start + columns_at_once, weight.shape[1])
        fields = grid(order[start:end], open_weight[:, start:end])
        # Transposed, so that a column of the weight is contiguous: most of the time of the walk.
        block = open_weight[:, start:end].t().contiguous()
        scale, zero, lowest, highest = (
            part.expand(weight.shape[0], end - start).t().contiguous() for part in fields
        )
        rounded, errors = torch.empty_like(block), torch.empty_like(block)
        for i in range(end - start):
            code = (block[i] / scale[i]).round_().add_(zero[i]).clamp_(lowest[i], highest[i])
            rounded[i] = code
            restored = (code - zero[i]).mul_(scale[i])
            errors[i] = (block[i] - restored) / factor[start + i, start + i]
            block[i] = restored
            block[i + 1 :].addr_(factor[start + i, start + i + 1 : end], errors[i], alpha=-1)
        codes[:, start:end], open_weight[:, start:end] = rounded.t(), block.t()
        open_weight[:, end:].addmm_(errors.t(), factor[start:end, end:], alpha=-1)
    return tuple(
        torch.empty_like(part).index_copy_(1, order, part) for part in (codes, open_weight)
    )


def _inverse_factor(second_moment: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper Cholesky factor of the damped inverse, fp32 [K, K]; computed in fp64."""
    moment = second_moment.double()
    diagonal = moment.diagonal()
    # A channel without energy is tied to nothing.
    diagonal.add_((diagonal == 0).double() * diagonal.mean().clamp(min=1e-12))
    diagonal.add_(damping * diagonal.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moment))
    return torch.linalg.cholesky(inverse, upper=True).float()
