# SPDX-License-Identifier: Apache-2.0
"""Weights that expect rounded inputs.

An INT4 activation is x + e, where the rounding error e has a variance d of each channel that
calibration measures. With e uncorrelated to x and between channels, the output error of a weight Q
in the place of W is

    E |W x - Q (x + e)|^2 = tr (W - Q) H (W - Q)^T + tr Q D Q^T,    H = E[x x^T], D = diag(d)
                          = tr (V - Q) (H + D) (V - Q)^T + const,   V = W H (H + D)^-1

so that rounding W for rounded inputs is rounding V on the second moment H + D: directions in which
the inputs have less energy than the error are damped. Only weights change; a kernel sees nothing.
The share of D that is counted is an option, 0 leaves W and H as they are. It is lowered where
calibration is short: a second moment of few tokens has directions without energy by chance.
"""

import torch

from comet.fmpq.options import FMPQOptions
from comet.formats.activations import ordered_activations, quantize_activations
from comet.formats.blocks import BlockLayout

# Of the mean of the diagonal: keeps the solution finite where a channel never fires.
FLOOR = 1e-4


def known_share(channels: int, tokens: int) -> float:
    """How far a second moment of so many tokens is trusted, 0..1; none up to two a channel."""
    return max(0.0, 1.0 - 2.0 * channels / max(1, tokens))


def rounding_noise(
    sample: torch.Tensor, layout: BlockLayout, permutation: torch.Tensor, options: FMPQOptions
) -> torch.Tensor:
    """Variance of the rounding error of each channel, fp32 [K padded], in stored order.

    Args:
        sample: fp32 [tokens, K], inputs in natural order.
        layout, permutation: of the input.
        options: how activations are rounded.
    """
    rounded = quantize_activations(
        sample,
        layout,
        permutation,
        options.act_scale,
        options.act_zero_point,
        options.act_hadamard,
    )
    exact = ordered_activations(sample, layout, permutation, options.act_hadamard)
    return (rounded.dequantize() - exact).square().mean(dim=0)


def noise_fit(moment: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix H (H + D)^-1 that turns W into V, and H + D; fp32 [K, K] both.

    Args:
        moment: fp32 [K, K], H.
        noise: fp32 [K], diagonal of D.
    """
    noisy = moment.clone()
    noisy.diagonal().add_(noise)
    floor = FLOOR * noisy.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    # Solved in fp64: the moments of a few thousand tokens are nearly singular.
    factor, exact = noisy.double(), moment.double()
    factor.diagonal().add_(floor)
    exact.diagonal().add_(floor)
    fit = torch.cholesky_solve(exact, torch.linalg.cholesky(factor))
    return fit.t().float().contiguous(), noisy
