# SPDX-License-Identifier: Apache-2.0
"""Hadamard matrices, and the methods that rotate: exact before anything is rounded."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.errors import UserError
from comet.fmpq.pipeline import Calibration
from comet.methods.atom import outliers_last
from comet.methods.linear import ActivationGrid
from comet.methods.pipeline import apply_method, load_method_model
from comet.methods.qoq import key_factors, progressive, progressive_grid, through_int8
from comet.methods.registry import METHODS
from comet.methods.rotation import (
    block_rotation,
    hadamard_factors,
    transformed_moment,
    whole_rotation,
)
from comet.methods.weight_grid import WeightGrid
from comet.models.folder import ModelFolder

# Fine enough that nothing is lost: what is left is the transform.
EXACT = WeightGrid(bits=16, group=None, clip="none", rounding="nearest")
SIZES = {"hidden_size": 64, "intermediate_size": 96}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Widths of the paper's models, of the default one, and orders of both of Paley's constructions.
@pytest.mark.parametrize(
    "size", [1, 2, 64, 576, 1536, 4096, 5120, 6656, 8192, 11008, 13824, 14336, 18944, 28672, 29568]
)
def test_hadamard_matrices_have_entries_of_one_and_orthogonal_rows(size):
    factors = hadamard_factors(size)
    assert len(factors[0]) * len(factors[1]) == size
    for matrix in factors:
        assert torch.equal(matrix.abs(), torch.ones_like(matrix))
        assert torch.equal(matrix @ matrix.t(), len(matrix) * torch.eye(len(matrix)))


def test_a_power_of_two_is_scipys_matrix():
    linalg = pytest.importorskip("scipy.linalg")
    for size in (2, 64, 512):
        ours = torch.kron(*hadamard_factors(size))
        assert torch.equal(ours, torch.tensor(linalg.hadamard(size), dtype=torch.float32))
        x = random(3, size)
        expected = x @ torch.tensor(linalg.hadamard(size), dtype=torch.float32) / size**0.5
        torch.testing.assert_close(whole_rotation(size).activations(x), expected)


def test_a_size_without_a_matrix_is_one_line():
    with pytest.raises(UserError, match="no Hadamard matrix of 9 rows"):
        hadamard_factors(9)


def test_the_moment_is_transformed_as_the_activations_are():
    x = random(50, 96)
    transforms = (block_rotation(8), whole_rotation(96))
    y = x
    for transform in transforms:
        y = transform.activations(y)
    torch.testing.assert_close(
        transformed_moment(x.t() @ x, transforms), y.t() @ y, rtol=1e-4, atol=1e-3
    )


def test_a_rotation_spreads_an_outlier():
    x = random(64, 576)
    x[:, 17] *= 100
    grid = ActivationGrid(bits=4)
    rotation = whole_rotation(576)
    rotated = rotation.activations(x)
    plain = (grid.restore(x) - x)[:, :17].square().mean()
    assert (grid.restore(rotated) - rotated).square().mean() < 0.5 * plain.clamp(max=1.0)
    assert plain > 0.9


@pytest.fixture(scope="module", params=["llama", "qwen3", "opt"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    sizes = SIZES
    if request.param == "opt":
        sizes = {"hidden_size": 64, "ffn_dim": 96, "word_embed_proj_dim": 64}
    write_model(path, tiny_config(request.param, **sizes))
    write_tokenizer(path)
    return ModelFolder(path)


def logits(folder, method, out):
    text = write_text(out / "text.jsonl")
    apply_method("method", method, folder, Calibration(text, "words", 2, 48), out / "quantized")
    model = load_method_model(out / "quantized", folder, torch.float32, "cpu")
    with torch.no_grad():
        return model(torch.arange(3, 43)[None]).logits


@pytest.fixture(scope="module")
def exact(folder):
    with torch.no_grad():
        return folder.load(torch.float32, "cpu")(torch.arange(3, 43)[None]).logits


@pytest.mark.parametrize("name", ["hadamard-w4a4", "quarot-w4a4", "atom-w4a4"])
def test_nothing_changes_before_rounding(folder, exact, tmp_path, name):
    method = replace(METHODS[name], weights=EXACT, activations=ActivationGrid())
    if name == "atom-w4a4":
        method = replace(method, outliers=0)
    difference = logits(folder, method, tmp_path) - exact
    assert difference.norm() < 1e-3 * exact.norm()


@pytest.mark.parametrize("name", ["quarot-rtn-w4a4", "atom-w4a4", "qoq-w4a8", "qoq-g128-w4a8"])
def test_rounded_models_stay_close(folder, exact, tmp_path, name):
    ours = logits(folder, METHODS[name], tmp_path)
    similarity = torch.nn.functional.cosine_similarity(exact, ours, dim=-1).mean()
    assert 0.85 < similarity < 0.99999


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


def test_outliers_are_the_channels_of_most_energy():
    energy = torch.tensor([5.0, 1.0, 9.0, 2.0, 0.5])
    assert outliers_last(energy, 2).tolist() == [1, 3, 4, 0, 2]


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_progressive_weights_restore_to_int8_within_the_range(rounding):
    weight, moment = random(40, 200), torch.diag(random(200).square() + 0.1)
    restored = progressive(weight, moment, 128, rounding)
    scale = weight.abs().amax(dim=1, keepdim=True) / 119
    integers = restored / scale
    torch.testing.assert_close(integers, integers.round(), rtol=0, atol=1e-3)
    assert integers.abs().max() <= 127.001
    for group in integers.round().int().split(128, dim=1):
        assert all(len(row.unique()) <= 16 for row in group)
    assert (restored - weight).norm() < 0.15 * weight.norm()


def test_both_steps_of_progressive_weights_round_as_torch_rounds():
    weight = random(24, 200)
    scale, step, zero = progressive_grid(weight, 128, 1.0)
    fake = torch.fake_quantize_per_channel_affine
    none = torch.zeros(24, dtype=torch.int32)
    wide = fake(weight, scale[:, 0], none, 0, -119, 119) / scale
    parts = [
        fake(part, step[:, at], zero[:, at].int(), 0, 0, 15)
        for part, at in zip(wide.round().split(128, dim=1), (0, 128), strict=True)
    ]
    expected = torch.cat(parts, dim=1) * scale
    # torch multiplies by the reciprocal of a scale, so a quotient halfway may go the other way.
    close = torch.isclose(through_int8(weight, scale, step, zero), expected, rtol=1e-4, atol=1e-6)
    assert close.float().mean() > 0.995


def test_factors_of_keys_are_equal_in_a_pair_and_grow_with_it():
    keys = random(100, 2, 16)
    keys[:, 1, 3] *= 50
    factors = key_factors(keys, 0.5)
    assert torch.equal(factors[:, :8], factors[:, 8:])
    largest = torch.hypot(keys[:, 1, 3], keys[:, 1, 11]).max()
    assert factors[1, 3] == pytest.approx(float(largest) ** 0.5)
    assert factors[1, 3] == factors.max()
