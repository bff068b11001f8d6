# SPDX-License-Identifier: Apache-2.0
"""FMPQ step by step: statistics, outliers, permutation, weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import UserError
from comet.fmpq.gptq import DAMPING, gptq_codes
from comet.fmpq.options import FMPQOptions
from comet.fmpq.outliers import choose_layout
from comet.fmpq.permutation import outliers_last
from comet.fmpq.statistics import ChannelStatistics
from comet.fmpq.weights import quantize_weight
from comet.formats.blocks import (
    BLOCK,
    BlockLayout,
    check_permutation,
    gather_channels,
    natural_permutation,
    scatter_channels,
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("metric", ["p999", "p99", "max", "mean_square"])
def test_statistics_equal_those_of_all_tokens_at_once(metric):
    x = random(3000, 20)
    running = ChannelStatistics(20, 3000, "x", (metric,))
    for part in x.split(700):
        running.update(part.view(2, -1, 20))
    magnitude = x.abs().sort(dim=0, descending=True).values
    expected = {
        "p999": magnitude[3],
        "p99": magnitude[30],
        "max": magnitude[0],
        "mean_square": x.square().mean(dim=0),
    }[metric]
    assert torch.allclose(running.metric(metric), expected, rtol=1e-6)
    assert torch.allclose(running.second_moment(), x.square().mean(dim=0), rtol=1e-6)


def test_a_value_that_is_not_finite_names_the_input():
    statistics = ChannelStatistics(4, 10, "model.layers.3.mlp_in")
    with pytest.raises(UserError, match="model.layers.3.mlp_in") as error:
        statistics.update(torch.tensor([[1.0, torch.inf, 0, 0]]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("channels", "share", "int8_blocks"),
    [(576, 0.2, 1), (1536, 0.2, 2), (4096, 0.2, 6), (576, 0.0, 0), (576, 1.0, 5), (100, 0.1, 1)],
)
def test_the_share_rule_fills_what_the_share_allows(channels, share, int8_blocks):
    layout = choose_layout(random(channels).abs(), FMPQOptions(int8_share=share))
    assert layout.int8_blocks == int8_blocks


def test_the_threshold_rule_counts_outliers_up_to_the_share():
    statistic = torch.ones(1536)
    options = FMPQOptions(outlier_rule="threshold", outlier_threshold=10, int8_share=0.5)
    assert choose_layout(statistic, options).int8_blocks == 0
    statistic[:129] = 50
    assert choose_layout(statistic, options).int8_blocks == 2
    statistic[:700] = 50
    assert choose_layout(statistic, options).int8_blocks == 6


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 700), st.floats(0, 1), st.sampled_from(["sorted", "moved"]), st.integers(0, 9)
)
def test_permutations_gather_the_largest_channels_last(channels, share, order, seed):
    statistic = random(channels, seed=seed).abs()
    layout = choose_layout(statistic, FMPQOptions(int8_share=share))
    permutation = outliers_last(statistic, layout, order)
    check_permutation(permutation, layout)
    outliers = permutation[layout.int4_channels :]
    outliers = outliers[outliers >= 0].long()
    normal = permutation[: layout.int4_channels]
    normal = normal[normal >= 0].long()
    if len(outliers) and len(normal):
        assert statistic[outliers].min() >= statistic[normal].max()
        assert len(outliers) == layout.int8_blocks * BLOCK
    ordered = normal.sort().values if order == "moved" else normal[statistic[normal].argsort()]
    assert torch.equal(normal, ordered)
    x = random(3, channels)
    assert torch.equal(scatter_channels(gather_channels(x, permutation), permutation, channels), x)


def test_ties_keep_their_natural_order():
    layout = BlockLayout.of(300, 1)
    permutation = outliers_last(torch.ones(300), layout, "sorted")
    assert torch.equal(permutation[:172], torch.arange(172, dtype=torch.int32))
    assert torch.all(permutation[172:256] == -1)
    assert torch.equal(permutation[256:], torch.arange(172, 300, dtype=torch.int32))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", ["group_int", "group_fp"])
def test_weights_are_restored_within_a_step(kind, symmetric):
    weight = random(33, 200) * 0.1
    layout = BlockLayout.of(200, 1)
    permutation = outliers_last(random(200).abs(), layout, "sorted")
    options = FMPQOptions(
        weight_scale=kind,
        weight_symmetric=symmetric,
        weight_clip="none",
        weight_rounding="nearest",
    )
    packed = quantize_weight(weight, torch.ones(200), layout, permutation, options)
    restored = scatter_channels(packed.dequantize(), permutation, 200)
    assert (restored - weight).norm() / weight.norm() < 0.13
    if symmetric:
        assert torch.all(packed.group_zero == 8)


def test_the_clip_search_lowers_the_weighted_error_and_never_raises_it():
    weight, importance = random(64, 256) * 0.1, random(256).square() * 10
    weight[:, 7] *= 6
    importance[7] = 1e-3
    layout = BlockLayout.of(256, 0)
    errors = {}
    for clip in ("none", "weighted"):
        options = FMPQOptions(weight_clip=clip, weight_rounding="nearest")
        packed = quantize_weight(weight, importance, layout, natural_permutation(layout), options)
        errors[clip] = ((packed.dequantize() - weight).square() * importance).sum(dim=1)
    assert torch.all(errors["weighted"] <= errors["none"] * (1 + 1e-5))
    assert errors["weighted"].sum() < 0.7 * errors["none"].sum()


def test_an_all_zero_layer_stays_zero():
    layout = BlockLayout.of(130, 1)
    packed = quantize_weight(
        torch.zeros(4, 130), torch.eye(130), layout, natural_permutation(layout), FMPQOptions()
    )
    assert not packed.dequantize().any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outlier_metrik": "p99"}, "fmpq.outlier_metrik"),
        ({"act_scale": "per_tensor"}, "act_scale"),
        ({"int8_share": 20}, "int8_share"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        FMPQOptions.from_config(options)


def output_error(packed, weight, moment):
    difference = scatter_channels(packed.dequantize(), packed.permutation, weight.shape[1]) - weight
    return float(torch.einsum("nk,kl,nl->", difference, moment, difference))


@pytest.mark.parametrize("kind", ["group_int", "group_fp"])
def test_gptq_lowers_the_output_error_on_correlated_inputs(kind):
    mixing = random(300, 300, seed=5)
    x = random(2000, 300, seed=6) @ mixing
    moment = x.t() @ x / len(x)
    weight = random(40, 300) * 0.1
    layout = BlockLayout.of(300, 1)
    permutation = outliers_last(x.abs().amax(dim=0), layout, "sorted")
    errors = {}
    for rounding in ("nearest", "gptq"):
        options = FMPQOptions(weight_rounding=rounding, weight_scale=kind)
        packed = quantize_weight(weight, moment, layout, permutation, options)
        errors[rounding] = output_error(packed, weight, moment)
    assert errors["gptq"] < 0.6 * errors["nearest"]


def test_gptq_equals_the_algorithm_written_out_in_float64():
    x = random(500, 200, seed=3) @ random(200, 200, seed=4)
    moment, weight = x.t() @ x / len(x), random(5, 200) * 0.1
    scale, zero = torch.full((5, 200), 0.02), torch.full((5, 200), 8.0)
    codes = gptq_codes(weight, moment, scale, zero, torch.zeros(5, 200), torch.full((5, 200), 15.0))
    order = moment.diagonal().argsort(descending=True)
    h = moment.double()[order][:, order]
    h += DAMPING * h.diagonal().mean() * torch.eye(200)
    upper = torch.linalg.cholesky(torch.linalg.inv(h)).mT
    w, expected = weight.double()[:, order], torch.zeros(5, 200, dtype=torch.float64)
    for i in range(200):
        expected[:, i] = ((w[:, i] / 0.02).round() + 8).clamp(0, 15)
        error = (w[:, i] - (expected[:, i] - 8) * 0.02) / upper[i, i]
        w[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    agreement = (codes[:, order].double() == expected).double().mean()
    assert agreement > 0.99


def test_gptq_without_correlations_rounds_to_the_nearest():
    weight, layout = random(8, 256) * 0.1, BlockLayout.of(256, 0)
    moment = torch.diag(random(256).square() + 0.1)
    packed = [
        quantize_weight(
            weight,
            moment,
            layout,
            natural_permutation(layout),
            FMPQOptions(weight_rounding=rounding),
        )
        for rounding in ("nearest", "gptq")
    ]
    assert torch.equal(packed[0].codes, packed[1].codes)


def test_gptq_without_the_second_moment_is_refused():
    layout = BlockLayout.of(128, 0)
    with pytest.raises(ValueError, match="second moment"):
        quantize_weight(
            random(4, 128), torch.ones(128), layout, natural_permutation(layout), FMPQOptions()
        )
