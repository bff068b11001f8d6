# SPDX-License-Identifier: Apache-2.0
"""GPTQ rounding (Frantar et al., ICLR 2023, algorithm 1).

Columns are rounded one after another; the error of each is spread over the columns that are still
open, by the inverse of the inputs' second moment. Where the grid comes from is the caller's choice:
FMPQ fixes it beforehand by its clip search, the paper finds it group by group during the walk.
"""

from collections.abc import Callable
from functools import lru_cache

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
        walk = round_block if not block.is_cuda else _graph_of(*block.shape, block.device)
        own = factor[start:end, start:end]
        rounded, errors, restored = walk(block, scale, zero, lowest, highest, own)
        codes[:, start:end], open_weight[:, start:end] = rounded.t(), restored.t()
        open_weight[:, end:].addmm_(errors.t(), factor[start:end, end:], alpha=-1)
    return tuple(
        torch.empty_like(part).index_copy_(1, order, part) for part in (codes, open_weight)
    )


def round_block(
    block: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    lowest: torch.Tensor,
    highest: torch.Tensor,
    factor: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round the columns of a block in turn, the error of each spread over those behind it.

    Args:
        block: fp32 [n, N], columns of the weight as rows; overwritten.
        scale, zero, lowest, highest: fp32 [n, N], as of ``gptq_codes``.
        factor: fp32 [n, n], the block's part of the factor of the inverse second moment.

    Returns:
        Codes, errors over the factor's diagonal, and what the codes restore to, each [n, N].
    """
    rounded, errors = torch.empty_like(block), torch.empty_like(block)
    for i in range(block.shape[0]):
        code = (block[i] / scale[i]).round_().add_(zero[i]).clamp_(lowest[i], highest[i])
        rounded[i] = code
        restored = (code - zero[i]).mul_(scale[i])
        errors[i] = (block[i] - restored) / factor[i, i]
        block[i] = restored
        block[i + 1 :].addr_(factor[i, i + 1 :], errors[i], alpha=-1)
    return rounded, errors, block


class _BlockGraph:
    """``round_block`` of one size as a CUDA graph.

    A block of 128 columns is about two thousand small kernels, whose launches take several times as
    long as they run. What a call returns is overwritten by the next one.
    """

    def __init__(self, columns: int, rows: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # else a call outside of it may not write to them
            self._inputs = [torch.ones(columns, rows, device=device) for _ in range(5)]
            self._inputs.append(torch.eye(columns, device=device))
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            round_block(*self._inputs)  # libraries allocate at their first call
        torch.cuda.current_stream(device).wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=beside, capture_error_mode="thread_local"):
            self._outputs = round_block(*self._inputs)

    def __call__(self, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As ``round_block``; the arguments are left alone."""
        for own, part in zip(self._inputs, parts, strict=True):
            own.copy_(part)
        self._graph.replay()
        return self._outputs


@lru_cache(maxsize=16)  # a model has few sizes of linears
def _graph_of(columns: int, rows: int, device: torch.device) -> _BlockGraph:
    return _BlockGraph(columns, rows, device)


def _inverse_factor(second_moment: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper Cholesky factor of the damped inverse, fp32 [K, K]; computed in fp64."""
    moment = second_moment.double()
    diagonal = moment.diagonal()
    # A channel without energy is tied to nothing.
    diagonal.add_((diagonal == 0).double() * diagonal.mean().clamp(min=1e-12))
    diagonal.add_(damping * diagonal.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moment))
    return torch.linalg.cholesky(inverse, upper=True).float()
