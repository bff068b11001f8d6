# SPDX-License-Identifier: Apache-2.0
"""Random weights and activations that use the whole range of the contract."""

import torch

from comet.formats.activations import QuantizedActivations, quantize_activations
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.weights import PackedWeight, pack_weight


def random_weight(channels: int, layout: BlockLayout) -> PackedWeight:
    """Any s in 1..17, any z, any code for which s * (u - z) fits a signed byte."""
    shape = (channels, layout.blocks)
    scale, zero = torch.randint(1, 18, shape), torch.randint(0, 16, shape)
    low = (zero - 128 // scale).clamp(min=0)[..., None]
    high = (zero + 127 // scale).clamp(max=15)[..., None]
    share = torch.rand(*shape, 128)
    codes = (low + share * (high - low + 1)).floor().long().minimum(high)
    return pack_weight(
        layout,
        natural_permutation(layout),
        codes.flatten(1),
        scale.to(torch.uint8),
        zero,
        torch.rand(channels) * 1e-3 + 1e-4,
    )


def activations(tokens: int, channels: int) -> torch.Tensor:
    """fp16 values with outlier channels and tokens of very different size."""
    x = torch.randn(tokens, channels) * torch.randn(tokens, 1).mul(2).exp()
    x[:, torch.randperm(channels)[: max(1, channels // 100)]] *= 30
    return x.clamp(-60000, 60000).half()


def random_activations(tokens: int, layout: BlockLayout) -> QuantizedActivations:
    """Quantized by the reference."""
    x = activations(tokens, layout.channels)
    return quantize_activations(x, layout, natural_permutation(layout))
