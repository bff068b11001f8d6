# SPDX-License-Identifier: Apache-2.0
"""Grids of weights: as torch rounds, of least error, and under GPTQ."""

from dataclasses import replace

import torch

from comet.methods.weight_grid import WeightGrid


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_weights_are_rounded_as_torch_rounds():
    weight, moment = random(24, 96), torch.eye(96)
    grid = WeightGrid(group=None, symmetric=True, clip="none", ratio=0.85, rounding="nearest")
    scale = weight.abs().amax(dim=1) * 0.85 / 7
    zero = torch.zeros(24, dtype=torch.int32)
    expected = torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -8, 7)
    torch.testing.assert_close(grid.restore(weight, moment), expected)


def test_the_search_finds_the_range_of_least_error():
    weight = random(16, 128)
    weight[:, 0] *= 8
    searched = WeightGrid(group=None, clip="mse", rounding="nearest")
    restored = searched.restore(weight, torch.eye(128))
    best = (restored - weight).square().sum(dim=1)
    for ratio in searched.ratios:
        fixed = replace(searched, clip="none", ratio=ratio).restore(weight, torch.eye(128))
        assert torch.all(best <= (fixed - weight).square().sum(dim=1) * (1 + 1e-6))


def test_gptq_lowers_the_output_error():
    x = random(500, 96, seed=1) @ random(96, 96, seed=2)
    moment, weight = x.t() @ x / 500, random(32, 96)
    errors = {}
    for rounding in ("nearest", "gptq"):
        restored = WeightGrid(group=32, rounding=rounding).restore(weight, moment)
        errors[rounding] = (x @ (restored - weight).t()).square().sum()
    assert errors["gptq"] < 0.7 * errors["nearest"]
