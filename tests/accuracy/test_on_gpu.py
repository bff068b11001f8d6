# SPDX-License-Identifier: Apache-2.0
"""Methods and rows on a stand-in GPU: nothing of the processor is mixed in, codes are the same."""

from dataclasses import replace

import pytest
from safetensors.torch import load_file
from standin_gpu import NAME, StandInGpu
from tiny_models import tiny_config, write_model, write_text, write_tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.accuracy.kv4_study import KV4Study, compare_variants
from comet.accuracy.protocol import Audit, audit_protocol
from comet.fmpq.options import PLUS, FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.kernels import kv4_reference
from comet.methods.pipeline import apply_method
from comet.methods.registry import METHODS
from comet.methods.weight_grid import WeightGrid
from comet.models.folder import ModelFolder

SEARCHED = WeightGrid(group=None, symmetric=True, clip="mse", ratios=(1.0, 0.9))
# One of each file, its search cut short.
SETTINGS = {
    "rtn-w4a16": {},
    "gptq-w4a16": {},
    "smoothquant-w8a8": {},
    "awq-w4a16": {},
    "omniquant-w4a4": {"epochs": 1},
    "hadamard-w4a4": {},
    "quarot-w4a4": {"weights": SEARCHED},
    "atom-w4a4": {},
    "qoq-w4a8": {},
    "qoq-g128-w4a8": {},
}
SIDES = ("cpu", "gpu")
ROWS = ("fmpq-w4a16", "fmpq-w4a4", "fmpq-w4axkv4", "fmpq-plus-w4axkv4", "w16a16-kv4")


@pytest.fixture(autouse=True)
def one_attention(monkeypatch):
    """The stand-in has no fused attention, so the processor does without it too, and takes the
    GPU's way to attention over a 4-bit cache."""
    monkeypatch.setattr(kv4_reference, "_page_by_page", kv4_reference._all_scores)
    with sdpa_kernel(SDPBackend.MATH):
        yield


def _write(base, **sizes):
    write_model(base / "model", tiny_config("llama", num_hidden_layers=1, **sizes))
    write_tokenizer(base / "model")
    write_text(base / "text.jsonl")
    return ModelFolder(base / "model")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("name", SETTINGS)
def test_method(name, small, tmp_path):
    method = replace(METHODS[name], **SETTINGS[name])
    text = Calibration(small.path.parent / "text.jsonl", "words", windows=2, context=32)
    apply_method(name, method, small, text, tmp_path / "cpu")
    with StandInGpu() as gpu:
        apply_method(name, method, small, text, tmp_path / "gpu", device=NAME)
    assert gpu.calls["aten.copy_.default"]
    _assert_same(tmp_path)


def _assert_same(base):
    """But for what follows from rounding where torch cuts a product in other pieces."""
    expected, found = (load_file(base / side / "layer-00000.safetensors") for side in SIDES)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        difference = found[key].double() - value.double()
        assert difference.norm() <= 0.02 * value.double().norm(), key


@pytest.mark.parametrize("checkpoint", ["natural", "fmpq-plus"])
def test_checkpoint(checkpoint, tmp_path):
    folder = _write(tmp_path, hidden_size=160, intermediate_size=192)
    text = Calibration(tmp_path / "text.jsonl", "words", windows=2, context=32)
    options = FMPQOptions(**(PLUS if checkpoint == "fmpq-plus" else {}))

    def quantize(side, device="cpu"):
        out = tmp_path / side
        quantize_model(folder, text, out, options, checkpoint, "small", {}, seed=0, device=device)

    quantize("cpu")
    with StandInGpu():
        quantize("gpu", NAME)
    _assert_same(tmp_path)


@pytest.mark.parametrize("backend", ROWS)
def test_row(backend, tiny):
    checkpoint = backend.removesuffix("-w4axkv4") if "w4ax" in backend else "natural"
    evaluation = Evaluation(
        backend=backend,
        model="tiny",
        model_folder=tiny / "model",
        dataset="words",
        split="test",
        text=tiny / "text.jsonl",
        context=64,
        windows="0",
        checkpoint=tiny / checkpoint,
        integer_windows=1,
    )
    (expected,) = evaluate_row(evaluation, {}, 0)
    with StandInGpu():
        (found,) = evaluate_row(replace(evaluation, device=NAME), {}, 0)
    assert expected.status == "ok", expected.reason
    assert found.samples == expected.samples
    assert found.method == expected.method


def test_kv_cache_study(tmp_path):
    path = _write(tmp_path, hidden_size=64, head_dim=32).path
    text = tmp_path / "text.jsonl"
    study = KV4Study("small", path, "granularity", "words", text, context=64, tokens=64)
    expected = compare_variants(study, {}, 0)
    with StandInGpu():
        found = compare_variants(replace(study, device=NAME), {}, 0)
    assert [record.samples for record in found] == [record.samples for record in expected]


def test_protocol_audit(tiny):
    audit = Audit(
        "w16a16", "tiny", tiny / "model", "words", tiny / "text.jsonl", 32, (64,), tokens=64
    )
    expected = audit_protocol(audit, {}, 0)
    with StandInGpu():
        found = audit_protocol(replace(audit, device=NAME), {}, 0)
    assert [record.samples for record in found] == [record.samples for record in expected]
