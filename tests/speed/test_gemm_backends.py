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


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_names_a_function(name):
    backend = BACKENDS[name]
    module = import_module(f"comet.speed.backends.{backend.module}")
    assert callable(getattr(module, backend.function))


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(UserError, match="'cublas' is unknown; use one of comet-w4ax, "):
        backend_of("cublas")


@pytest.mark.parametrize("name", sorted(n for n in BACKENDS if n.startswith(("vllm", "trtllm"))))
def test_missing_rivals_say_how_to_get_them(name, monkeypatch):
    monkeypatch.delenv("COMET_VLLM_SITE", raising=False)
    with pytest.raises(Unavailable, match=r"COMET_VLLM_SITE|add the records"):
        backend_of(name).load(SHAPE, torch.device("cpu"))


def test_a_folder_without_vllm_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_VLLM_SITE", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{tmp_path}.* does not exist"):
        backend_of("vllm-cutlass-int8").load(SHAPE, torch.device("cpu"))


def test_rivals_that_are_missing_or_fail_leave_records(monkeypatch):
    def refuse(_shape, _device):
        raise RuntimeError("no kernel for this\nsecond line")

    skipped, failed = (
        gemm._measure_one(CASE, name, torch.device("cpu"), SOURCE, TimerOptions())
        for name in ("trtllm-w4a16", _backend(monkeypatch, refuse))
    )
    assert [record.status for record in skipped + failed] == ["skipped", "failed"]
    assert failed[0].reason == "RuntimeError: no kernel for this"


def test_both_metrics_are_recorded_with_what_they_leave_out(monkeypatch):
    monkeypatch.setattr(gemm, "time_graph", lambda calls, _options: [call() for call in calls])
    monkeypatch.setattr(gemm.nvml, "sample", lambda: {"sm_clock_mhz": 1980})

    def work(_shape, _device):
        return Workload([lambda: 2.0, lambda: 4.0], [lambda: 7.0], {"plan": "any"})

    name = _backend(monkeypatch, work)
    records = gemm._measure_one(CASE, name, torch.device("cpu"), SOURCE, TimerOptions())
    assert [(r.metric, r.median) for r in records] == [("time", 3.0), ("time_with_quantization", 7)]
    assert "activation quantization" in records[0].method["not_timed"]
    assert "activation quantization" not in records[1].method["not_timed"]
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

    monkeypatch.setitem(BACKENDS, "fake", Fake())
    return "fake"
