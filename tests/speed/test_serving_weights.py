# SPDX-License-Identifier: Apache-2.0
"""Weights of an engine: packed ones and norms are drawn, never what fresh memory holds."""

import json
import sys
import types

import pytest
import torch
from serving_standins import GPU, LOADS, WORKER, program
from torch import nn

from comet.speed import capability
from comet.speed.serving import engines, vllm_weights
from comet.speed.serving.cases import ServingJob
from comet.speed.serving.records import serving_records


class Packed(nn.Module):
    """A linear layer as AWQ packs it, as allocated."""

    def __init__(self) -> None:
        super().__init__()
        for name, dtype in (
            ("qweight", torch.int32),
            ("qzeros", torch.int32),
            ("g_idx", torch.int32),
            ("scales", torch.float16),
        ):
            self.register_parameter(
                name, nn.Parameter(torch.zeros(64, 32, dtype=dtype), requires_grad=False)
            )


def test_packed_weights_and_norms_are_drawn_and_nothing_else():
    layers = {"first": Packed(), "second": Packed(), "head": nn.Linear(4, 4)}
    model = nn.ModuleDict(layers | {"input_layernorm": nn.LayerNorm(512), "norm": nn.RMSNorm(512)})
    floats = model["head"].weight.clone()
    found = vllm_weights.draw_weights(model)
    assert found == {"norms": 2, "packed": 2, "packed_bytes": 2 * 8192, "zero_bytes": 2 * 8192}
    for norm in ("input_layernorm", "norm"):
        low, high = model[norm].weight.aminmax()
        assert 0.5 <= low < 0.55 and 1.45 < high <= 1.5
    packed = model["first"], model["second"]
    first, second = (layer.qweight.view(torch.uint8) for layer in packed)
    for drawn in (first, second):
        counts = torch.bincount(torch.cat([drawn.flatten() & 15, drawn.flatten() >> 4]).int())
        assert len(counts) == 16 and counts.min() > 0.8 * counts.float().mean()
    assert not torch.equal(first, second)
    for layer in packed:
        assert set(layer.qzeros.view(torch.uint8).unique().tolist()) == {0x88}
        assert not layer.g_idx.any() and not layer.scales.any()
    assert torch.equal(model["head"].weight, floats)


def test_the_loader_of_dummy_weights_draws_them_too(tmp_path, monkeypatch):
    class DummyModelLoader:
        def load_weights(self, model, model_config):
            model.scales.data.fill_(model_config)

    registered = {}
    package = types.ModuleType("vllm.model_executor.model_loader")
    package.register_model_loader = lambda name: lambda kind: registered.setdefault(name, kind)
    loader = types.ModuleType("vllm.model_executor.model_loader.dummy_loader")
    loader.DummyModelLoader = DummyModelLoader
    for module in (package, loader):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    report = tmp_path / "weights.json"
    monkeypatch.setenv(vllm_weights.REPORT, str(report))
    vllm_weights.register()
    model = Packed()
    registered["dummy"]().load_weights(model, 0.5)
    assert (model.scales == 0.5).all() and model.qweight.any()
    assert json.loads(report.read_text())["packed"] == 1


UNPACKED = "json.dump(drawn | {'packed': 0}, open(os.environ['COMET_SERVING_WEIGHTS'], 'w'))"


@pytest.mark.parametrize(
    "engine, more, drawn",
    [
        ("vllm-w4a16", "", 128),
        ("vllm-bf16", "", 0),
        ("vllm-w4a16", UNPACKED, None),
        ("vllm-bf16", "os.remove(os.environ['COMET_SERVING_WEIGHTS'])", None),
    ],
)
def test_an_engine_is_not_timed_on_weights_that_nobody_drew(
    tmp_path, monkeypatch, engine, more, drawn
):
    monkeypatch.setattr(capability, "detect", lambda: GPU)
    body = f'{WORKER}{more}\njson.dump(response, open(sys.argv[-1], "w"))\n'
    monkeypatch.setenv(engines.PYTHON, program(tmp_path / "python", body))
    records = serving_records([ServingJob("LLaMA-3-8B", engine, LOADS)], {}, 0)
    if drawn is None:
        assert {record.status for record in records} == {"skipped"}
        assert "weights that nobody drew" in records[0].reason
    else:
        assert {record.status for record in records} == {"ok"}
        assert records[0].method["engine"]["weights"]["packed"] == drawn
