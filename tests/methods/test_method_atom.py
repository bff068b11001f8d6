# SPDX-License-Identifier: Apache-2.0
"""Atom: which channels are kept in INT8, and in what they are rounded."""

from dataclasses import replace

import torch

from comet.methods.atom import outliers_last
from comet.methods.linear import ActivationGrid
from comet.methods.method import Block, LayerInput
from comet.methods.registry import METHODS
from comet.models.families import InputGroup, family_named


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_outliers_are_the_channels_of_most_energy():
    energy = torch.tensor([5.0, 1.0, 9.0, 2.0, 0.5])
    assert outliers_last(energy, 2).tolist() == [1, 3, 4, 0, 2]


class Layer(torch.nn.Module):
    """A decoder layer of one linear."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(384, 24, bias=False)


def test_outlier_channels_keep_eight_bits_in_weights_and_activations():
    layer, x = Layer(), random(200, 384)
    outliers = torch.arange(0, 384, 3)
    x[:, outliers] *= 30
    group = InputGroup("mlp_out", ("linear",))
    seen = LayerInput(group, x.abs().amax(0), x.abs().mean(0), x.t() @ x / 200, x)
    block = Block(0, None, None, lambda layer, hidden: hidden, 1, 1, 8)
    family = family_named("llama", "test")
    (quantized,) = METHODS["atom-w4a4"].quantize_layer(layer, family, {"": seen}, block).values()
    assert set(quantized.transforms[0].order[-128:].tolist()) == set(outliers.tolist())
    ordered = quantized.transforms[0].activations(x)
    error = (quantized.grid.restore(ordered) - ordered).abs()
    # Half a step of 8 bits of a token's largest outlier.
    assert torch.all(error[:, -128:] <= ordered[:, -128:].abs().amax(1, keepdim=True) / 253)
    assert quantized.grid == replace(ActivationGrid(bits=4, group=128, clip=0.9), int8_channels=128)
    for row in quantized.weight[:, :128]:
        assert len(row.unique()) <= 16
    assert all(len(row.unique()) > 50 for row in quantized.weight[:, -128:])
