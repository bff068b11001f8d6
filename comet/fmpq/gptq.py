# SPDX-License-Identifier: Apache-2.0
"""GPTQ rounding (Frantar et al., ICLR 2023, algorithm 1) on a grid that is fixed beforehand.

Columns are rounded one after another; the error of each is spread over the columns that are still
open, by the inverse of the inputs' second moment. Here scales and zero points come from the clip
search and do not move, and columns go in falling order of their second moment ("act-order").
"""

import torch

DAMPING = 0.01
COLUMNS_AT_ONCE = 128


def gptq_codes(
    weight: torch.Tensor,
    second_moment: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    lowest: torch.Tensor,
    highest: torch.Tensor,
) -> torch.Tensor:
    """Codes that keep the layer's output close rather than each weight.

    Args:
        weight: fp32 [N, K].
        second_moment: fp32 [K, K], mean of x x^T over calibration tokens, in the order of the
            weight's columns; channels that never fire have a zero row.
        scale, zero, lowest, highest: fp32 [N, K], grid and code range of each weight.

    Returns:
        fp32 [N, K] integer codes.
    """
    order = second_moment.diagonal().argsort(descending=True, stable=True)
    factor = _inverse_factor(second_moment[order][:, order])
    open_weight = weight[:, order].clone()
    scale, zero = scale[:, order], zero[:, order]
    lowest, highest = lowest[:, order], highest[:, order]
    codes = torch.empty_like(open_weight)
    columns = weight.shape[1]
    for start in range(0, columns, COLUMNS_AT_ONCE):
        end = min(start + COLUMNS_AT_ONCE, columns)
        errors = torch.empty_like(open_weight[:, start:end])
        for i in range(start, end):
            column = open_weight[:, i]
            code = ((column / scale[:, i]).round_() + zero[:, i]).clamp_(
                lowest[:, i], highest[:, i]
            )
            codes[:, i] = code
            error = (column - (code - zero[:, i]) * scale[:, i]) / factor[i, i]
            errors[:, i - start] = error
            open_weight[:, i + 1 : end].addr_(error, factor[i, i + 1 : end], alpha=-1)
        open_weight[:, end:].addmm_(errors, factor[start:end, end:], alpha=-1)
    return torch.empty_like(codes).index_copy_(1, order, codes)


def _inverse_factor(second_moment: torch.Tensor) -> torch.Tensor:
    """Upper Cholesky factor of the damped inverse, fp32 [K, K]; computed in fp64."""
    moment = second_moment.double()
    diagonal = moment.diagonal()
    # A channel without energy is tied to nothing.
    diagonal.add_((diagonal == 0).double() * diagonal.mean().clamp(min=1e-12))
    diagonal.add_(DAMPING * diagonal.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moment))
    return torch.linalg.cholesky(inverse, upper=True).float()
