# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant: equation 4, and what it is for: channels of very different size."""

import pytest
import torch
from layer_inputs import FAMILY, block, decoder_layer, layer_inputs, output_error

from comet.methods.linear import ActivationGrid
from comet.methods.rtn import RoundToNearest
from comet.methods.smoothquant import SmoothQuant, migration_scale


def test_equation_four_by_hand():
    absmax = torch.tensor([16.0, 2.0])
    weights = [torch.tensor([[1.0, 0.5], [-4.0, 0.1]]), torch.tensor([[2.0, -8.0]])]
    scale = migration_scale(absmax, weights, 0.5)
    torch.testing.assert_close(scale, torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(migration_scale(absmax, weights, 1.0), absmax)
    torch.testing.assert_close(migration_scale(absmax, weights, 0.0), torch.tensor([0.25, 0.125]))


def test_channels_of_zeros_stay_finite():
    scale = migration_scale(torch.zeros(2), [torch.zeros(3, 2)], 0.5)
    assert torch.isfinite(scale).all() and (scale > 0).all()


def test_inputs_that_follow_a_norm_are_smoothed_together():
    quantized = SmoothQuant("SQ").quantize_layer(decoder_layer(), FAMILY, layer_inputs(), block())
    scales = {
        name: linear.transforms[0].scale for name, linear in quantized.items() if linear.transforms
    }
    assert set(scales) == {*FAMILY.inputs[0].linears, *FAMILY.inputs[2].linears}
    assert torch.equal(scales["self_attn.q_proj"], scales["self_attn.v_proj"])
    assert torch.equal(scales["mlp.gate_proj"], scales["mlp.up_proj"])


@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"])
def test_an_outlier_channel_costs_less_than_without_smoothing(name):
    layer, inputs = decoder_layer(), layer_inputs()
    smoothed = SmoothQuant("SQ").quantize_layer(layer, FAMILY, inputs, block())
    plain = RoundToNearest(
        "W8A8", weight_bits=8, weight_group=None, activations=ActivationGrid(bits=8)
    ).quantize_layer(layer, FAMILY, {}, block())
    exact, x = layer.get_submodule(name), inputs[FAMILY.group_of(name).name].sample
    assert output_error(exact, smoothed[name], x) < 0.5 * output_error(exact, plain[name], x)
