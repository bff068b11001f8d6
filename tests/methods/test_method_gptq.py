# SPDX-License-Identifier: Apache-2.0
"""GPTQ as a method: grids of its own, found before or during the walk."""

import pytest
import torch
from layer_inputs import FAMILY, block, correlated, decoder_layer, layer_inputs, output_error

from comet.errors import UserError
from comet.methods.gptq import GPTQ, gptq_weight, min_max_grid
from comet.methods.rtn import RoundToNearest


def walked_in_float64(weight: torch.Tensor, moment: torch.Tensor, group: int) -> torch.Tensor:
    """Algorithm 1 written out: the grid of a group is found when the walk reaches it."""
    h = moment.double() + 0.01 * moment.double().diagonal().mean() * torch.eye(len(moment))
    upper = torch.linalg.cholesky(torch.linalg.inv(h)).mT
    w, restored = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for i in range(w.shape[1]):
        if i % group == 0:
            part = w[:, i : i + group]
            low, high = part.amin(dim=1).clamp(max=0), part.amax(dim=1).clamp(min=0)
            scale = (high - low) / 15
            zero = (-low / scale).round()
        restored[:, i] = (((w[:, i] / scale).round() + zero).clamp(0, 15) - zero) * scale
        error = (w[:, i] - restored[:, i]) / upper[i, i]
        w[:, i:] -= error[:, None] * upper[i, i:]
    return restored


def test_groups_found_during_the_walk_are_those_of_the_algorithm_written_out():
    x = correlated(400, 72)
    moment, weight = x.t() @ x / len(x), torch.randn(6, 72) * 0.1
    ours = gptq_weight(weight, moment, group=32, act_order=False, grouping="walk")
    expected = walked_in_float64(weight, moment, 32)
    assert ((ours - expected).abs() < 1e-5).float().mean() > 0.98


@pytest.mark.parametrize("grouping", ["natural", "walk"])
def test_one_grid_a_channel_is_fixed_beforehand(grouping):
    x = correlated(300, 40)
    weight = torch.randn(5, 40)
    restored = gptq_weight(weight, x.t() @ x / 300, group=None, grouping=grouping)
    scale, zero, *_ = min_max_grid(weight, 4, symmetric=False)
    codes = restored / scale + zero
    torch.testing.assert_close(codes, codes.round().clamp(0, 15), atol=1e-3, rtol=0)


def test_uncorrelated_inputs_leave_rounding_to_the_nearest():
    weight, moment = torch.randn(8, 48), torch.diag(torch.rand(48) + 0.1)
    scale, zero, *_ = min_max_grid(weight, 4, symmetric=True)
    nearest = (weight / scale).round().clamp(-8, 7) * scale
    restored = gptq_weight(weight, moment, group=None, symmetric=True)
    assert torch.equal(zero, torch.full_like(zero, 8))
    torch.testing.assert_close(restored, nearest)


@pytest.mark.parametrize("group", [None, 16])
def test_gptq_beats_round_to_nearest_in_every_linear(group):
    layer, inputs = decoder_layer(), layer_inputs()
    ours = GPTQ("GPTQ", group=group).quantize_layer(layer, FAMILY, inputs, block())
    nearest = RoundToNearest("RTN", weight_group=group, weight_symmetric=False).quantize_layer(
        layer, FAMILY, {}, block()
    )
    assert set(ours) == set(FAMILY.linears)
    for name in FAMILY.linears:
        exact, x = layer.get_submodule(name), inputs[FAMILY.group_of(name).name].sample
        assert output_error(exact, ours[name], x) < 0.8 * output_error(exact, nearest[name], x)
        assert (ours[name].bias is None) == (exact.bias is None)


def test_an_unknown_grouping_is_one_line():
    with pytest.raises(UserError, match="grouping is 'dynamic'; use one of natural, walk"):
        GPTQ("GPTQ", grouping="dynamic")
