# SPDX-License-Identifier: Apache-2.0
"""Methods and rows on a GPU say what the processor says.

A method is compared by the weights that it restores, which may differ by 10 % of their size: a sum
in another order turns some codes. Some methods are chaotic: an embedding changed by 1e-7 of its
size moves their weights by up to 23 %, on a processor alone. So each method is also compared by how
far its model is from the 16-bit one, which that changes by at most 6 %; 10 % are allowed.
A row is compared by its perplexity on one checkpoint. Where activations are 4 bits wide, one bit of
rounding changes codes of every later layer; such rows are allowed 5 %, all others 0.01 %.
"""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import tiny_config, write_calm_model, write_text, write_tokenizer

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.accuracy.kv4_study import KV4Study, compare_variants
from comet.accuracy.tasks import score_task
from comet.fmpq.options import PLUS, FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.methods.pipeline import apply_method, load_method_model
from comet.methods.registry import METHODS
from comet.models.folder import ModelFolder

pytestmark = pytest.mark.gpu
GPU = "cuda"
ROUNDED, EXACT, TURNED, DISTANCE = 0.05, 1e-4, 0.1, 0.1
CHAOTIC = dict.fromkeys(("gptq-w4a16", "gptq-w4a16-channel", "omniquant-w4a4"), 0.3)
CHECKPOINTS = {"natural": {}, "fmpq": {}, "fmpq-plus": PLUS}
ROWS = {
    "w16a16": (None, EXACT),
    "w16a16-kv4": (None, ROUNDED),
    "fmpq-w4a16": ("natural", EXACT),
    "fmpq-w4a4": ("natural", ROUNDED),
    "fmpq-w4axkv4": ("fmpq", ROUNDED),
    "fmpq-plus-w4axkv4": ("fmpq-plus", ROUNDED),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 256, "intermediate_size": 640, "head_dim": 64}
    write_calm_model(base / "model", tiny_config("llama", **sizes))
    write_tokenizer(base / "model")
    write_text(base / "text.jsonl")
    for name, options in CHECKPOINTS.items():
        quantize(base, name, FMPQOptions(**options), base / name, "cpu")
    return base


def calibration(base):
    return Calibration(base / "text.jsonl", "words", windows=8, context=64)


def quantize(base, name, options, out, device):
    folder = ModelFolder(base / "model")
    quantize_model(folder, calibration(base), out, options, name, "m", {}, seed=0, device=device)


def assert_close(expected, found, bound=TURNED):
    for file in sorted(expected.glob("layer-*.safetensors")):
        other = load_file(found / file.name)
        for key, value in load_file(file).items():
            difference = (other[key].double() - value.double()).norm()
            assert difference <= bound * value.double().norm(), (file.name, key)


def test_float32_stays_float32():
    a, b = torch.randn(2, 512, 512, dtype=torch.float64, device=GPU)
    exact = a @ b
    assert ((a.float() @ b.float()) - exact).norm() < 1e-6 * exact.norm()


@pytest.mark.parametrize("name", METHODS)
def test_method(name, base, tmp_path):
    folder = ModelFolder(base / "model")
    for made, device in (("cpu", "cpu"), ("gpu", GPU)):
        apply_method(name, METHODS[name], folder, calibration(base), tmp_path / made, device=device)
    assert_close(tmp_path / "cpu", tmp_path / "gpu", CHAOTIC.get(name, TURNED))
    exact = log_probabilities(folder.load(torch.float32, "cpu"))
    by_cpu, by_gpu = (
        log_probabilities(load_method_model(tmp_path / made, folder, torch.float32, "cpu"))
        for made in ("cpu", "gpu")
    )
    distances = [(found - exact).abs().mean() for found in (by_cpu, by_gpu)]
    assert abs(distances[1] / distances[0] - 1) < DISTANCE
    scored = load_method_model(tmp_path / "cpu", folder, torch.float32, GPU)
    assert (log_probabilities(scored) - by_cpu).abs().mean() < ROUNDED


@torch.no_grad()
def log_probabilities(model):
    ids = torch.stack([torch.arange(first, first + 60) for first in range(3, 11)])
    return model(ids.to(model.device)).logits.cpu().log_softmax(-1)


def test_training_repeats(base, tmp_path):
    name = "omniquant-w4a4"
    for run in ("first", "second"):
        apply_method(
            name,
            replace(METHODS[name], epochs=1),
            ModelFolder(base / "model"),
            calibration(base),
            tmp_path / run,
            device=GPU,
        )
    assert_close(tmp_path / "first", tmp_path / "second", bound=0)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint(name, base, tmp_path):
    quantize(base, name, FMPQOptions(**CHECKPOINTS[name]), tmp_path / "q", GPU)
    assert_close(base / name, tmp_path / "q")


@pytest.mark.parametrize("backend", ROWS)
def test_row(backend, base):
    checkpoint, bound = ROWS[backend]
    evaluation = Evaluation(
        backend=backend,
        model="m",
        model_folder=base / "model",
        dataset="words",
        split="test",
        text=base / "text.jsonl",
        context=64,
        windows="0-3",
        checkpoint=base / checkpoint if checkpoint else None,
        integer_windows=1,
    )
    (expected,) = evaluate_row(evaluation, {}, 0)
    (found,) = evaluate_row(replace(evaluation, device=GPU), {}, 0)
    assert found.status == "ok", found.reason
    assert abs(math.log(found.median / expected.median)) < bound
    assert found.environment["device"] == torch.cuda.get_device_name()


def test_products_in_tf32_change_little(base):
    evaluation = Evaluation(
        "w16a16", "m", base / "model", "words", "test", base / "text.jsonl", 64, "0-3"
    )
    (expected,) = evaluate_row(evaluation, {}, 0)
    (found,) = evaluate_row(replace(evaluation, device=GPU, dtype="tf32"), {}, 0)
    assert 0 < abs(math.log(found.median / expected.median)) < 2e-3


def test_kv_cache_study(base):
    study = KV4Study("m", base / "model", "granularity", "words", base / "text.jsonl", 64, 256)
    expected = compare_variants(study, {}, 0)
    found = compare_variants(replace(study, device=GPU), {}, 0)
    for one, other in zip(expected, found, strict=True):
        assert abs(math.log(other.median / one.median)) < ROUNDED, one.case["kv"]


def test_task(base, tmp_path):
    pytest.importorskip("lm_eval")
    rows = tmp_path / "rows.jsonl"
    choices = [
        {"goal": f"g{n}", "sol1": f"a{n}", "sol2": f"b{7 * n}", "label": n % 2} for n in range(40)
    ]
    rows.write_text("".join(json.dumps(row) + "\n" for row in choices), encoding="utf-8")
    folder = ModelFolder(base / "model")
    tokenizer = folder.tokenizer()
    tokenizer.eos_token = tokenizer.unk_token
    scores = []
    for device, batch in (("cpu", 4), (GPU, 16)):
        model = folder.load(torch.float32, device)
        scores.append(score_task(model, tokenizer, "piqa", rows, None, batch))
    for one, other in zip(*scores, strict=True):
        assert sum(a != b for a, b in zip(one.items, other.items, strict=True)) <= 1
