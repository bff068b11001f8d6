# SPDX-License-Identifier: Apache-2.0
"""Peak memory is one decoder layer plus activations: measured, and projected."""

import gc
import json
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.fmpq import memory_run
from comet.fmpq.memory import MIB, PeakMeter, project_peak, projected_records
from comet.fmpq.options import WEIGHT_ROUNDINGS, FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.formats import checkpoint
from comet.models import random_weights
from comet.models.entries import ModelEntry
from comet.models.folder import ModelFolder
from comet.models.shapes import shapes_of

RUN = """
import json, sys
import torch
from pathlib import Path
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.models.folder import ModelFolder

torch.set_num_threads(1)
folder, text, out, windows, context = sys.argv[1:]
calibration = Calibration(Path(text), "words", int(windows), int(context))
options = FMPQOptions(weight_rounding="nearest")
records = quantize_model(
    ModelFolder(folder), calibration, Path(out), options, "fmpq", "random", {}, seed=0
)
print(json.dumps([record.as_dict() for record in records if record.case["layer"] == "all"]))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "calibration.jsonl")


@pytest.fixture
def tiny(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama", hidden_size=160, intermediate_size=384))
    write_tokenizer(tmp_path / "m")
    return ModelFolder(tmp_path / "m")


def quantize(folder, text, out, windows=3, context=48):
    calibration = Calibration(text, "words", windows, context)
    return quantize_model(folder, calibration, out, FMPQOptions(), "fmpq", "tiny", {}, seed=0)


def test_the_whole_model_has_two_records(tiny, text, tmp_path):
    records = quantize(tiny, text, tmp_path / "out")
    peak, duration = (record for record in records if record.case["layer"] == "all")
    assert (peak.metric, peak.unit) == ("peak_memory", "MiB")
    assert (duration.metric, duration.unit) == ("quantize_time", "s")
    assert peak.case == {"model": "tiny", "layer": "all", "method": "fmpq"}
    layer = sum(parameter.numel() for parameter in tiny.load().model.layers[0].parameters())
    assert peak.method["largest_layer_mib"] == pytest.approx(4 * layer / MIB)
    assert peak.method["hidden_states_mib"] == pytest.approx(3 * 48 * 160 * 4 / MIB)
    above = peak.method["absolute_peak_mib"] - peak.method["before_mib"]
    assert 0 <= peak.median == pytest.approx(above)
    assert 0 < duration.median < 60
    assert peak.method["calibration"] == {"dataset": "words", "windows": 3, "context": 48}


def test_a_model_that_was_cut_short_says_so(tiny, text, tmp_path):
    description = {"source": {"kind": "random", "shape": "LLaMA-2-7B", "layers": 3}}
    (tiny.path / "comet.json").write_text(json.dumps(description), encoding="utf-8")
    records = quantize(ModelFolder(tiny.path), text, tmp_path / "out")
    assert records[-1].case == {"model": "tiny", "layer": "all", "method": "fmpq", "layers": 3}


def test_the_meter_sees_what_is_used_and_freed():
    meter = PeakMeter("cpu")
    if "cannot be reset" in meter.source:
        pytest.skip("the high-water mark of the process cannot be reset here")

    def grown() -> int:
        meter = PeakMeter("cpu")
        block = torch.ones(64 * MIB // 4)
        del block
        meter.stop()
        return meter.peak - meter.base

    # A busy machine's kernel may take as many idle pages of this process meanwhile.
    assert any(grown() >= 60 * MIB for _ in range(3))
    again = PeakMeter("cpu")
    again.stop()
    assert again.peak - again.base < 32 * MIB


@pytest.mark.gpu
def test_the_meter_counts_what_the_allocator_of_a_gpu_hands_out():
    meter = PeakMeter("cuda")
    block = torch.ones(64 * MIB // 4, device="cuda")
    del block
    meter.stop()
    assert meter.peak - meter.base == 64 * MIB


def test_a_peak_that_cannot_be_reset_is_named(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    assert "since the process began" in PeakMeter("cpu").source


def test_nothing_of_a_layer_is_kept_while_the_next_is_loaded(tiny, text, tmp_path, monkeypatch):
    loaded, packed, alive = [], [], []
    read, pack = ModelFolder.tensors, checkpoint.packed_tensors

    def watched(self, *arguments):
        gc.collect()
        alive.append(sum(ref() is not None and not ref().is_meta for ref in (*loaded, *packed)))
        found = read(self, *arguments)
        loaded.extend(weakref.ref(tensor) for tensor in found.values())
        return found

    def watched_pack(name, weight):
        packed.append(weakref.ref(weight.codes))
        return pack(name, weight)

    monkeypatch.setattr(ModelFolder, "tensors", watched)
    monkeypatch.setattr(checkpoint, "packed_tensors", watched_pack)
    quantize(tiny, text, tmp_path / "out")
    rest = len(tiny.tensor_names()) - 3 * 9
    assert len(packed) == 3 * 7
    assert alive == [0] * (1 + 3 + rest)


def test_projection_counts_layer_embedding_and_hidden_states():
    shapes = shapes_of("LLaMA-2-7B")
    layer, embedding = 202_375_168, 32000 * 4096
    small = project_peak(shapes, windows=2, context=256, dtype_bytes=4, rounding="nearest")
    assert small.hidden_states == 2 * 256 * 4096 * 4
    assert small.phases["loading"] == layer * 6
    assert small.phases["embedding"] == embedding * 6
    assert small.peak == layer * 6 + small.hidden_states
    more = project_peak(
        shapes, windows=4, context=256, dtype_bytes=4, constant=5, rounding="nearest"
    )
    assert more.peak == small.peak + small.hidden_states + 5
    deep = project_peak(replace(shapes, layers=64), 2, 256, 4, rounding="nearest")
    assert deep.peak == small.peak


def test_projection_counts_the_second_moments_of_gptq():
    shapes = shapes_of("LLaMA-2-7B")
    nearest, gptq = (project_peak(shapes, 2, 256, 4, rounding=name) for name in ("nearest", "gptq"))
    kept = 4 * (3 * 4096**2 + 11008**2)
    assert gptq.phases["running"] == nearest.phases["running"] + kept
    assert gptq.phases["packing"] > nearest.phases["packing"] + kept + 3 * 8 * 11008**2
    assert gptq.phases["loading"] == nearest.phases["loading"]


def test_projected_records_fit_the_machines_of_the_claim():
    names = ["LLaMA-2-7B", "LLaMA-3-70B", "Qwen2-72B"]
    records = projected_records(names, 128, 2048, environment={}, provenance={})
    peaks = {
        (r.case["model"], r.case["device"], r.case["rounding"]): r.median / 1024 for r in records
    }
    assert len(peaks) == 12 and all(r.origin == "modelled" for r in records)
    for rounding in WEIGHT_ROUNDINGS:
        assert peaks["LLaMA-2-7B", "cpu", rounding] < 24
        # A GPU of 80 GB has 74.5 GiB, some of which the driver takes.
        assert peaks["LLaMA-3-70B", "cuda", rounding] < 70
    for record in records:
        assert max(record.method["phases_mib"].values()) < record.median


def test_a_random_model_is_measured_and_removed(tmp_path, text, monkeypatch, default_config):
    tiny_shapes = replace(
        shapes_of("LLaMA-2-7B"),
        hidden=160,
        intermediate=384,
        layers=2,
        heads=2,
        kv_heads=2,
        head_dim=80,
        vocab=256,
        linears={"qkv": (480, 160), "o": (160, 160), "gate_up": (768, 160), "down": (160, 384)},
    )
    monkeypatch.setattr(random_weights, "shapes_of", lambda name: tiny_shapes)
    source = {"kind": "random", "shape": "LLaMA-2-7B"}
    config = {"label": "random weights", "family": "llama", "source": source}
    records = memory_run.measure_memory(
        ModelEntry.from_config("r", config),
        Calibration(text, "words", 2, 48),
        tmp_path / "work",
        {"shapes": ["LLaMA-3-70B"], "windows": 4, "context": 48},
        default_config,
        seed=0,
        device="cpu",
    )
    assert [(r.metric, r.origin, r.case["model"]) for r in records[:2]] == [
        ("peak_memory", "measured", "r"),
        ("quantize_time", "measured", "r"),
    ]
    assert [(r.metric, r.origin, r.case["model"], r.case["windows"]) for r in records[2:]] == [
        *[("peak_memory", "modelled", "LLaMA-2-7B", 2)] * 4,
        *[("peak_memory", "modelled", "LLaMA-3-70B", 4)] * 4,
    ]
    assert records[0].provenance["config"] == default_config
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_peak_is_one_layer_plus_activations(tmp_path, text):
    """Six layers of 193 MiB each, in a process of its own, so that nothing else is measured."""
    shapes = replace(
        shapes_of("LLaMA-2-7B"),
        hidden=2048,
        intermediate=5504,
        layers=6,
        heads=16,
        kv_heads=16,
        vocab=8000,
    )
    (tmp_path / "m").mkdir()
    random_weights.write_random_model(tmp_path / "m", shapes, "llama")
    arguments = (str(tmp_path / "m"), str(text), str(tmp_path / "out"), "2", "256")
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True
    )
    peak = json.loads(done.stdout.splitlines()[-1])[0]
    layer, hidden = peak["method"]["largest_layer_mib"], peak["method"]["hidden_states_mib"]
    assert layer == pytest.approx(193, abs=5)
    assert layer < peak["median"] < 2 * layer + hidden + 400
    # All six layers at once would be far above it.
    assert 2 * layer + hidden + 400 < 6 * layer
