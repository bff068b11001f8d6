# SPDX-License-Identifier: Apache-2.0
"""GEMM backends, the timer's rules and the tuner's output; no GPU is needed."""

from importlib import import_module

import pytest
import torch

from comet.errors import UserError
from comet.kernels.w4ax_call import Plan
from comet.speed import gemm
from comet.speed.backends import BACKENDS, GemmShape, Unavailable, Workload, backend_of
from comet.speed.timer import TimerOptions
from comet.speed.tune_sm90 import write_table

SHAPE = GemmShape(m=16, n=64, k=256, int4_share=0.75)
CASE = {"model": "tiny", "layer": "o", "m": 16, "n": 64, "k": 256, "int4_share": 0.75}
SOURCE = {"environment": {"device": "none"}, "provenance": {"run_id": "one"}}
SESSION = gemm.Session(torch.device("cpu"), 0, TimerOptions(), SOURCE)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_names_a_function(name):
    backend = BACKENDS[name]
    module = import_module(f"comet.speed.backends.{backend.module}")
    assert callable(getattr(module, backend.function))


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(UserError, match="'cublas' is unknown; use one of comet-w4ax, "):
        backend_of("cublas")


@pytest.mark.parametrize("name", sorted(n for n in BACKENDS if n.startswith("vllm")))
def test_missing_rivals_say_how_to_get_them(name, monkeypatch):
    monkeypatch.delenv("COMET_VLLM_SITE", raising=False)
    with pytest.raises(Unavailable, match="COMET_VLLM_SITE"):
        backend_of(name).load(SHAPE, torch.device("cpu"))


def test_a_folder_without_vllm_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_VLLM_SITE", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{tmp_path}.* does not exist"):
        backend_of("vllm-cutlass-int8").load(SHAPE, torch.device("cpu"))


def test_rivals_that_are_missing_or_fail_leave_records(monkeypatch):
    def refuse(_shape, _device):
        raise RuntimeError("no kernel for this\nsecond line")

    skipped, failed = (
        gemm.measure_one(CASE, name, SESSION)
        for name in ("vllm-cutlass-int8", _backend(monkeypatch, refuse))
    )
    assert [record.status for record in skipped + failed] == ["skipped", "failed"]
    assert failed[0].reason == "RuntimeError: no kernel for this"


def test_every_metric_is_recorded_with_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(gemm, "time_graph", lambda calls, _options: [call() for call in calls])
    monkeypatch.setattr(gemm.nvml, "sample", lambda: {"sm_clock_mhz": 1980})

    def work(_shape, _device):
        besides = {"time_with_quantization": [lambda: 7.0], "quantization_time": [lambda: 5.0]}
        return Workload([lambda: 2.0, lambda: 4.0], besides, {"plan": "any"})

    records = gemm.measure_one(CASE, _backend(monkeypatch, work), SESSION)
    found = {record.metric: record for record in records}
    medians = {"time": 3.0, "time_with_quantization": 7.0, "quantization_time": 5.0}
    assert {metric: record.median for metric, record in found.items()} == medians
    left_out = {metric: record.method["not_timed"] for metric, record in found.items()}
    assert left_out == {
        "time": "launch from the host, activation quantization",
        "time_with_quantization": "launch from the host",
        "quantization_time": "launch from the host, the GEMM",
    }
    assert records[0].environment["gpu_before"] == {"sm_clock_mhz": 1980}
    assert records[0].method["plan"] == "any"


def test_the_table_is_written_as_the_module_reads_it(tmp_path):
    table = {
        (16, 64, 112, True): Plan("T16x2", split=6, prefetch=2, dependent_launch=True),
        (8, 64, 112, False): Plan("T8x1"),
    }
    write_table(table, "NVIDIA H200", 132, tmp_path / "table.py")
    namespace: dict = {}
    exec((tmp_path / "table.py").read_text(), namespace)
    assert namespace["TABLE"] == table
    assert namespace["TABLE_SMS"] == 132


def _backend(monkeypatch, function) -> str:
    """A registered backend that runs ``function``."""

    class Fake:
        def load(self, shape, device):
            return function(shape, device)

        def prepare(self, shapes, seed):
            pass

    monkeypatch.setitem(BACKENDS, "fake", Fake())
    return "fake"
