# SPDX-License-Identifier: Apache-2.0
"""Round-to-nearest: the plain baseline of every table, by fake quantization."""

import torch
from torch import nn

from comet.formats.activations import INT8_MAX
from comet.formats.blocks import BLOCK


def round_weight(weight: torch.Tensor, bits: int, group: int | None) -> torch.Tensor:
    """Symmetric round-to-nearest of a weight [N, K], restored to its own type.

    Args:
        weight: [N, K].
        bits: 2..8.
        group: input channels that share a scale; None means one scale per output channel. A last
            group may be shorter.
    """
    largest = 2 ** (bits - 1) - 1
    parts = weight.float().split(group or weight.shape[1], dim=1)
    restored = []
    for part in parts:
        scale = part.abs().amax(dim=1, keepdim=True) / largest
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        restored.append((part / scale).round().clamp(-largest - 1, largest) * scale)
    return torch.cat(restored, dim=1).to(weight.dtype)


class TokenInt8Linear(nn.Module):
    """A linear layer whose activations pass through symmetric INT8, one scale a token.

    Args:
        linear: layer to wrap; its weight is replaced by ``weight`` when given.
        weight: [N, K] restored weight or None.
    """

    def __init__(self, linear: nn.Linear, weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight if weight is None else weight, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] to [..., N], same dtype."""
        scale = x.float().abs().amax(dim=-1, keepdim=True) / INT8_MAX
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        restored = ((x.float() / scale).round() * scale).to(x.dtype)
        return nn.functional.linear(restored, self.weight, self.bias)


def rtn_w8a8(linear: nn.Linear) -> nn.Module:
    """W8A8: weights per output channel, activations per token."""
    return TokenInt8Linear(linear, round_weight(linear.weight, bits=8, group=None))


def rtn_w4a16(linear: nn.Linear) -> nn.Module:
    """W4A16: symmetric INT4 weights in natural groups of 128, activations untouched."""
    rounded = nn.Linear(linear.in_features, linear.out_features, bias=False)
    rounded.weight = nn.Parameter(
        round_weight(linear.weight, bits=4, group=BLOCK), requires_grad=False
    )
    rounded.bias = linear.bias
    return rounded
