# SPDX-License-Identifier: Apache-2.0
"""Learned clipping: gradients that say where to go, and ranges that lower the output error."""

import pytest
import torch

from comet.fmpq.learned_clip import fake_quantize, learned_range
from comet.fmpq.options import FMPQOptions
from comet.fmpq.weights import quantize_weight
from comet.formats.blocks import BlockLayout, natural_permutation


def correlated(channels: int) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(1000, channels) @ torch.randn(channels, channels) / channels**0.5
    return x.t() @ x / len(x)


def heavy_tailed(rows: int, channels: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, channels) ** 3 * 0.05


def output_error(difference: torch.Tensor, moment: torch.Tensor) -> float:
    return float((difference @ moment * difference).sum())


def test_values_inside_pass_their_gradient_and_values_outside_move_the_range():
    x = torch.tensor([[-0.9, 0.2, 0.9]], requires_grad=True)
    low = torch.tensor([[-1.0]], requires_grad=True)
    high = torch.tensor([[0.5]], requires_grad=True)
    restored = fake_quantize(x, low, high, 4)
    assert restored[0, 2].item() == pytest.approx(0.5)
    restored[0, 2].backward(retain_graph=True)
    assert x.grad[0, 2] == 0 and high.grad > 0
    restored[0, 1].backward()
    assert x.grad[0, 1].item() == pytest.approx(1.0)


def test_a_whole_range_is_plain_rounding():
    torch.manual_seed(2)
    x = torch.randn(4, 32)
    low, high = x.amin(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)
    scale = (high - low) / 15
    zero = (-low / scale).round().int().flatten()
    expected = torch.fake_quantize_per_channel_affine(x, scale.flatten(), zero, 0, 0, 15)
    torch.testing.assert_close(fake_quantize(x, low, high, 4), expected)


@pytest.mark.parametrize("symmetric", [False, True])
def test_learned_ranges_lower_the_output_error(symmetric):
    moment, groups = correlated(256), heavy_tailed(16, 256).view(16, 2, 128)
    low, high = groups.amin(dim=2), groups.amax(dim=2)
    if symmetric:
        high = groups.abs().amax(dim=2)
        low = -high * (8 / 7)
    errors = []
    for ends in ((low, high), learned_range(groups, low, high, moment, symmetric)):
        restored = fake_quantize(groups, ends[0][..., None], ends[1][..., None], 4)
        errors.append(output_error((restored - groups).flatten(1), moment))
    assert errors[1] < 0.95 * errors[0]
    if symmetric:
        torch.testing.assert_close(ends[0] / ends[1], torch.full_like(low, -8 / 7))


@pytest.mark.parametrize("kind", ["group_int", "group_fp"])
def test_as_an_option_it_beats_the_searches(kind):
    moment, weight = correlated(256), heavy_tailed(8, 256)
    layout = BlockLayout.of(256, 0)
    errors = {}
    for clip in ("none", "weighted", "learned"):
        options = FMPQOptions(weight_clip=clip, weight_scale=kind, weight_rounding="nearest")
        packed = quantize_weight(weight, moment, layout, natural_permutation(layout), options)
        errors[clip] = output_error(packed.dequantize() - weight, moment)
    assert errors["learned"] < min(errors["none"], errors["weighted"])


def test_it_needs_the_whole_second_moment():
    layout = BlockLayout.of(128, 0)
    options = FMPQOptions(weight_clip="learned", weight_rounding="nearest")
    assert options.correlations
    with pytest.raises(ValueError, match="whole second moment"):
        quantize_weight(
            torch.randn(4, 128), torch.ones(128), layout, natural_permutation(layout), options
        )
