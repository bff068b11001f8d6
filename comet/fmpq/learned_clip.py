# SPDX-License-Identifier: Apache-2.0
"""Learnable weight clipping (OmniQuant, Shao et al., ICLR 2024, section 3.2), layer by layer.

The range of each weight group is sigmoid(beta) min(W) .. sigmoid(gamma) max(W) (equation 2). Here
both factors are learned against the layer's own output error tr(D M D^T), D the weight error and M
the second moment of the input; ``comet.methods.omniquant`` learns them against the output of the
whole decoder layer, as OmniQuant does.
"""

import torch

# sigmoid(4) = 0.98: training starts from nearly the whole range, as in OmniQuant's code.
FIRST_FACTOR = 4.0
STEPS = 20
RATE = 0.5


def round_through(x: torch.Tensor) -> torch.Tensor:
    """Rounded; the gradient passes as if it were not."""
    return x + (x.round() - x).detach()


def fake_quantize(
    x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, bits: int
) -> torch.Tensor:
    """x on the grid of ``bits`` bits from low <= 0 to high >= 0, restored (equation 2).

    Gradients reach x, low and high; values outside the range pass theirs to the range alone.
    """
    levels = 2**bits - 1
    scale = (high - low) / levels
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    zero = (-low / scale).round().detach()
    return ((round_through(x / scale) + zero).clamp(0, levels) - zero) * scale


@torch.enable_grad()
def learned_range(
    groups: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    moment: torch.Tensor,
    symmetric: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranges of INT4 groups that keep the layer's output close.

    Args:
        groups: fp32 [n, B, group], weights.
        low, high: fp32 [n, B], range of each group, zero included.
        moment: fp32 [K, K], mean of x x^T, K = B * group.
        symmetric: one factor for both ends.

    Returns:
        fp32 [n, B] each; of every row the best step's, so never worse than the whole range nearly.
    """
    factor = torch.full_like(low, FIRST_FACTOR).requires_grad_()
    factors = [factor] if symmetric else [factor, factor.detach().clone().requires_grad_()]
    optimizer = torch.optim.Adam(factors, lr=RATE)
    least = torch.full_like(low[:, :1], torch.inf)
    best = [torch.full_like(low, FIRST_FACTOR) for _ in factors]
    for _ in range(STEPS):
        ends = low * factors[0].sigmoid(), high * factors[-1].sigmoid()
        difference = fake_quantize(groups, *(end[..., None] for end in ends), 4) - groups
        difference = difference.flatten(1)
        error = (difference @ moment * difference).sum(dim=1, keepdim=True)
        better = error.detach() < least
        least = torch.where(better, error.detach(), least)
        best = [
            torch.where(better, new.detach(), old) for new, old in zip(factors, best, strict=True)
        ]
        optimizer.zero_grad()
        error.sum().backward()
        optimizer.step()
    return low * best[0].sigmoid(), high * best[-1].sigmoid()
