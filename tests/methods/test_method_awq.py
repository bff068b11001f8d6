# SPDX-License-Identifier: Apache-2.0
"""AWQ: the searches find what a search by hand finds, and never do worse than none."""

import pytest
import torch
from layer_inputs import (
    FAMILY,
    HEADS,
    block,
    correlated,
    decoder_layer,
    layer_inputs,
    observed,
    output_error,
)

from comet.methods.awq import AWQ, clip_weight, search_scale
from comet.methods.awq import output_error as moment_error
from comet.methods.rtn import RoundToNearest, round_weight


def test_the_error_of_the_second_moment_is_that_of_the_tokens():
    x, difference = correlated(300, 24), torch.randn(5, 24)
    by_tokens = (x @ difference.t()).square().sum() / len(x)
    moment = x.t() @ x / len(x)
    assert moment_error(difference, moment) == pytest.approx(float(by_tokens), rel=1e-4)


def test_the_scale_is_the_best_power_of_the_mean_magnitude():
    watched = observed("attn_in", correlated(300, 32))
    weights = [torch.randn(8, 32), torch.randn(4, 32)]
    scale = search_scale(weights, watched.mean_magnitude, watched.moment, 4, 16)
    log = scale.log() - scale.log().mean()
    power = watched.mean_magnitude.log() - watched.mean_magnitude.log().mean()
    alpha = float((log @ power) / (power @ power))
    torch.testing.assert_close(log, alpha * power, atol=1e-5, rtol=1e-4)
    assert 0 < alpha < 1 and alpha * 20 == pytest.approx(round(alpha * 20), abs=1e-3)

    def error(step: int) -> float:
        s = watched.mean_magnitude ** (step / 20)
        made = [round_weight(weight * s, 4, 16, symmetric=False) / s for weight in weights]
        pairs = zip(made, weights, strict=True)
        return sum(float((watched.sample @ (a - b).t()).square().sum()) for a, b in pairs)

    errors = [error(step) for step in range(20)]
    assert errors[round(alpha * 20)] == pytest.approx(min(errors), rel=1e-3)


def test_equal_channels_are_left_alone():
    torch.manual_seed(1)
    weight, moment = torch.randn(8, 32), torch.eye(32)
    scale = search_scale([weight], torch.ones(32), moment, 4, 16)
    torch.testing.assert_close(scale, torch.ones(32))


def test_clipping_never_costs_a_group():
    x = correlated(300, 32)
    moment, weight = x.t() @ x / len(x), torch.randn(8, 32)
    weight[0, 3] = 9.0
    clipped = round_weight(clip_weight(weight, moment, 4, 16), 4, 16, symmetric=False)
    plain = round_weight(weight, 4, 16, symmetric=False)
    for start in (0, 16):
        part = slice(start, start + 16)
        for row in range(8):
            errors = [
                (x[:, part] @ (made[row, part] - weight[row, part])).square().sum()
                for made in (clipped, plain)
            ]
            assert errors[0] <= errors[1] * (1 + 1e-4)
    assert not torch.equal(clipped, plain)


def test_the_attention_output_is_scaled_only_without_shared_heads():
    for kv_heads, scaled in ((HEADS, True), (HEADS // 2, False)):
        quantized = AWQ("AWQ", group=16).quantize_layer(
            decoder_layer(), FAMILY, layer_inputs(), block(kv_heads)
        )
        assert bool(quantized["self_attn.o_proj"].transforms) == scaled
        assert all(quantized[name].transforms for name in FAMILY.linears if "o_proj" not in name)
    shared = [quantized[name].transforms[0].scale for name in FAMILY.inputs[0].linears]
    assert torch.equal(shared[0], shared[2])


@pytest.mark.parametrize("group", [None, 16])
def test_awq_beats_round_to_nearest(group):
    layer, inputs = decoder_layer(), layer_inputs()
    ours = AWQ("AWQ", group=group).quantize_layer(layer, FAMILY, inputs, block(HEADS))
    nearest = RoundToNearest("RTN", weight_group=group, weight_symmetric=False).quantize_layer(
        layer, FAMILY, {}, block()
    )
    for group_ in FAMILY.inputs:
        x = inputs[group_.name].sample
        errors = [
            sum(output_error(layer.get_submodule(name), made[name], x) for name in group_.linears)
            for made in (ours, nearest)
        ]
        assert errors[0] < errors[1]
