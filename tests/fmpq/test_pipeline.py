# SPDX-License-Identifier: Apache-2.0
"""The whole method on tiny models of every family, from folder to checkpoint and back."""

import json

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.errors import UserError
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.model import load_checkpoint_model
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, absorb_into_rows, quantize_model
from comet.formats.checkpoint import Checkpoint
from comet.models.families import FAMILIES
from comet.models.folder import ModelFolder

SIZES = {"hidden_size": 160, "intermediate_size": 384}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "calibration.jsonl")


def make_folder(path, family):
    sizes = SIZES
    if family == "opt":
        sizes = {"hidden_size": 160, "ffn_dim": 384, "word_embed_proj_dim": 160}
    write_model(path, tiny_config(family, **sizes))
    write_tokenizer(path)
    return ModelFolder(path)


def quantize(folder, text, out, checkpoint="fmpq", **options):
    calibration = Calibration(text, "words", windows=3, context=48)
    return quantize_model(
        folder, calibration, out, FMPQOptions(**options), checkpoint, "tiny", {}, seed=0
    )


@pytest.fixture(scope="module", params=list(FAMILIES))
def quantized(request, tmp_path_factory, text):
    base = tmp_path_factory.mktemp(request.param)
    folder = make_folder(base / "model", request.param)
    records = quantize(folder, text, base / "fmpq")
    return folder, base / "fmpq", records


def logits(model, seed=1):
    ids = torch.randint(3, 90, (1, 40), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def test_a_checkpoint_loads_complete_and_close_to_the_model(quantized):
    folder, out, _ = quantized
    model = load_checkpoint_model(out)
    layers = [m for m in model.modules() if isinstance(m, W4AxLinear)]
    assert len(layers) == 3 * len(folder.family.linears)
    assert all(not p.is_meta for p in model.parameters())
    exact, ours = logits(folder.load()), logits(model)
    assert torch.isfinite(ours).all()
    assert torch.nn.functional.cosine_similarity(exact, ours, dim=-1).mean() > 0.8


def test_loading_twice_gives_identical_bits(quantized):
    _, out, _ = quantized
    assert torch.equal(logits(load_checkpoint_model(out)), logits(load_checkpoint_model(out)))


def test_fake_quantization_agrees_with_exact_integers(quantized):
    _, out, _ = quantized
    for layer in load_checkpoint_model(out).modules():
        if isinstance(layer, W4AxLinear):
            x = torch.randn(9, layer.in_features, generator=torch.Generator().manual_seed(2))
            fake = layer(x)
            layer.path = "integer"
            tolerance = 1e-5 * float(fake.abs().max())
            assert torch.allclose(layer(x), fake, rtol=1e-5, atol=tolerance)


def test_records_hold_the_shares_of_every_layer(quantized):
    folder, out, records = quantized
    records = [record for record in records if record.case["layer"] != "all"]
    assert {r.case["layer"] for r in records} == {f"{folder.family.layers}.{i}" for i in range(3)}
    shares = json.loads((out / "layers.json").read_text())["layers"]
    for record in records:
        assert record.median == pytest.approx(shares[record.case["layer"]][record.metric])
        assert record.unit == "percent" and 0 <= record.median <= 100
    blocks = next(iter(shares.values()))["inputs"]["mlp_out"]
    assert (blocks["int4_blocks"], blocks["int8_blocks"]) == (2, 1)


def test_one_permutation_serves_all_linears_of_an_input(quantized):
    folder, out, _ = quantized
    checkpoint = Checkpoint(out)
    prefix = f"{folder.family.layers}.1"
    for group in folder.family.inputs:
        permutations = [checkpoint.tensor(f"{prefix}.{name}.perm") for name in group.linears]
        assert all(torch.equal(permutations[0], other) for other in permutations[1:])


def test_the_same_seed_gives_the_same_checkpoint(quantized, tmp_path, text):
    folder, out, _ = quantized
    quantize(folder, text, tmp_path / "again")
    for file in sorted(path.name for path in out.iterdir()):
        assert (out / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_absorbing_the_permutation_changes_no_result(tmp_path, text, family):
    folder = make_folder(tmp_path / "model", family)
    results = {}
    for absorb in (True, False):
        out = tmp_path / f"absorb-{absorb}"
        quantize(folder, text, out, absorb_permutation=absorb)
        model = load_checkpoint_model(out)
        layer = model.get_submodule(
            f"{folder.family.layers}.0.{folder.family.inputs[-1].linears[0]}"
        )
        assert layer.in_natural_order == absorb
        results[absorb] = logits(model)
    assert torch.allclose(results[True], results[False], atol=1e-3)


def test_absorption_is_exact_before_quantization(tmp_path):
    folder = make_folder(tmp_path / "model", "llama")
    model = folder.load()
    before = logits(model)
    permutation = torch.randperm(384, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    absorb_into_rows(model.model.layers[1], folder.family, permutation)
    assert torch.allclose(logits(model), before, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"act_zero_point": True, "act_hadamard": True, "channel_order": "moved"},
        {"weight_scale": "group_fp", "act_scale": "token_block", "weight_symmetric": True},
        {"outlier_rule": "threshold", "outlier_threshold": 1.5, "act_scale": "token"},
    ],
)
def test_options_travel_with_the_checkpoint(tmp_path, text, options):
    folder = make_folder(tmp_path / "model", "llama")
    quantize(folder, text, tmp_path / "out", **options)
    checkpoint = Checkpoint(tmp_path / "out")
    assert {key: checkpoint.options[key] for key in options} == options
    exact, ours = logits(folder.load()), logits(load_checkpoint_model(tmp_path / "out"))
    assert torch.nn.functional.cosine_similarity(exact, ours, dim=-1).mean() > 0.7


def test_the_natural_checkpoint_keeps_order_and_has_no_int8(tmp_path, text):
    folder = make_folder(tmp_path / "model", "qwen2")
    records = quantize(folder, text, tmp_path / "out", checkpoint="natural")
    assert all(r.median == 0 for r in records if r.metric == "int8_block_share")
    assert all(
        m.in_natural_order
        for m in load_checkpoint_model(tmp_path / "out").modules()
        if isinstance(m, W4AxLinear)
    )


def test_a_text_that_is_too_short_leaves_nothing_behind(tmp_path, text):
    folder = make_folder(tmp_path / "model", "llama")
    calibration = Calibration(text, "words", windows=500, context=48)
    with pytest.raises(UserError, match="500|499"):
        quantize_model(
            folder, calibration, tmp_path / "out", FMPQOptions(), "fmpq", "tiny", {}, seed=0
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
