# SPDX-License-Identifier: Apache-2.0
"""Hadamard matrices, and the methods that rotate: exact before anything is rounded."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.errors import UserError
from comet.fmpq.pipeline import Calibration
from comet.methods.linear import ActivationGrid
from comet.methods.pipeline import apply_method, load_method_model
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
