# SPDX-License-Identifier: Apache-2.0
"""Attention cases, records, memory and the bars that speed is judged by; no GPU is needed."""

import itertools
import json

import pytest
import torch

from comet.cli import main
from comet.errors import UserError
from comet.measurements import Measurement
from comet.speed import attention, attention_bench
from comet.speed.attention import KeptAttention, check_output, measure_one
from comet.speed.attention_backends import AttentionShape
from comet.speed.attention_bars import CEILING, LEAST_BYTES, speedups, verdict
from comet.speed.attention_cases import (
    BACKENDS,
    MODELS,
    REFERENCE,
    attention_cases,
    attention_jobs,
    kv_token_bytes,
)
from comet.speed.backends import Unavailable, Workload
from comet.speed.cases import Job
from comet.speed.gemm import Session
from comet.speed.timer import TimerOptions

SOURCE = {"environment": {"device": "none"}, "provenance": {"run_id": "one"}}
SESSION = Session(torch.device("cpu"), 0, TimerOptions(), SOURCE)
CASE = attention_cases("llama3-8b")[0]


def test_cases_stay_within_the_memory_of_a_layer():
    cases = attention_cases("llama2-7b")
    assert [(c["batch"], c["context"]) for c in cases if c["batch"] >= 64] == [
        (64, 1024),
        (64, 4096),
        (256, 1024),
    ]
    assert cases[0]["kv_bytes_16bit"] == 2**24
    assert sum(len(attention_cases(model)) for model in REFERENCE) == 31 + 7
    half_full = [c for c in attention_cases("llama3-8b") if c["context"] % 64]
    assert {c["context"] % 64 for c in half_full} == {32}
    assert len(half_full) == 7
    assert {c["context"] for c in attention_cases("qwen2-72b")} == {65536, 131072}
    with pytest.raises(UserError, match="'gpt' *; known are llama2-7b, "):
        attention_cases("gpt")


def test_kv_bytes_of_a_token():
    assert kv_token_bytes("sdpa-bf16", 128, 4096) == 512
    assert kv_token_bytes("vllm-fa3-fp8", 128, 4096) == 256
    assert kv_token_bytes("vllm-turboquant-4bit", 128, 4096) == 134
    # 8,960 bytes a page of 64 tokens, and 16 KiB of the last page's keys.
    assert kv_token_bytes("comet-kv4", 128, 4096) == 8960 / 64 + 16384 / 4096
    assert pytest.approx(CEILING, abs=0.01) == 512 / (8960 / 64)


def test_memory_is_a_modelled_record():
    (record, *_) = attention_bench.memory_records(["llama3-8b"], {}, 0)
    assert (record.backend, record.metric, record.origin) == (
        "comet-kv4",
        "kv_bytes_per_token",
        "modelled",
    )
    assert record.median == pytest.approx(32 * 8 * (140 + 16))
    assert record.case["layers"] == 32


def workload(**more) -> Workload:
    shape = AttentionShape.of(CASE)
    out = torch.ones(shape.batch, shape.heads, shape.head_dim)
    return Workload([lambda: out], more, {"copies": 2})


def with_backend(monkeypatch, load) -> None:
    backend = type("Backend", (), {"load": staticmethod(load)})
    monkeypatch.setattr(attention, "attention_backend_of", lambda _name: backend)
    monkeypatch.setattr(attention, "time_graph", lambda calls, _options: [call() for call in calls])
    monkeypatch.setattr(attention.nvml, "sample", lambda: {"sm_clock_mhz": 1980})


def test_append_is_recorded_beside_decode(monkeypatch):
    out = workload().calls[0]()
    times = iter([out, 10.0])
    loaded = Workload([lambda: next(times)], {"append_time": [lambda: 0.25]}, {"copies": 2})
    with_backend(monkeypatch, lambda *_: loaded)
    time, append, share = measure_one(CASE, "comet-kv4", SESSION)
    assert [(r.metric, r.median) for r in (time, append, share)] == [
        ("time", 10.0),
        ("append_time", 0.25),
        ("append_share", 2.5),
    ]
    assert share.unit == "percent" and share.method["decode_us"] == 10.0
    assert time.environment["gpu_before"] == {"sm_clock_mhz": 1980}
    assert "KV caches" in time.method["l2_state"]
    assert "append" in time.method["not_timed"] and "append" not in append.method["not_timed"]


def test_missing_and_failing_rivals_leave_records(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no kernel for this\nsecond line")

    def absent(*_):
        raise Unavailable("not here")

    with_backend(monkeypatch, refuse)
    (failed,) = measure_one(CASE, "vllm-fa3-bf16", SESSION)
    assert (failed.status, failed.reason) == ("failed", "RuntimeError: no kernel for this")
    with_backend(monkeypatch, absent)
    (skip,) = measure_one(CASE, "vllm-fa3-bf16", SESSION)
    assert (skip.status, skip.reason) == ("skipped", "not here")


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (torch.ones(3), "3 elements"),
        (torch.zeros(1, 32, 128), "zero"),
        (torch.full((1, 32, 128), torch.nan), "not finite"),
    ],
)
def test_an_impossible_output_is_a_failure(out, why):
    with pytest.raises(RuntimeError, match=why):
        check_output(out, AttentionShape.of(CASE))


def test_finished_cases_are_not_measured_again(tmp_path):
    kept = KeptAttention(tmp_path, {"device": "none"}, {})
    job = Job(CASE, ("comet-kv4",))
    record = Measurement("attention", CASE, "time", "us", "comet-kv4", [1.0], **SOURCE)
    kept.keep(job, [record])
    assert kept.finished(job) == [record]
    assert kept.finished(Job(CASE, ("comet-kv4", "sdpa-bf16"))) is None
    assert kept.finished(Job(attention_cases("llama3-8b")[1], ("comet-kv4",))) is None


def timed(case: dict, backend: str, value: float, run: str = "one", **fields) -> dict:
    source = SOURCE | {"provenance": {"run_id": run}} | fields
    return Measurement("attention", case, "time", "us", backend, [value], **source).as_dict()


def reference_run(factor: float) -> list[dict]:
    times = {"comet-kv4": 1.0, "sdpa-bf16": factor, "vllm-fa3-bf16": 1.5 * factor}
    cases = itertools.chain(*(attention_cases(model) for model in REFERENCE))
    return [timed(c, b, t) for c in cases for b, t in times.items()]


def test_speed_is_against_the_faster_16_bit_kernel_of_the_run():
    (first, *_) = speedups(reference_run(3.0))
    assert first.speedup == pytest.approx(3.0)
    assert first.baseline_name == "sdpa-bf16"
    rows = [timed(CASE, "comet-kv4", 1.0, "a"), timed(CASE, "sdpa-bf16", 3.0, "b")]
    assert speedups(rows + [timed(CASE, "vllm-fa3-bf16", 3.0, "a")]) == []


@pytest.mark.parametrize(
    ("factor", "bar"), [(1.9, "none"), (2.0001, "must"), (2.7, "good"), (3.2, "goal")]
)
def test_the_bar_needs_every_row(factor, bar):
    records = reference_run(factor)
    found = verdict(records)
    assert (found.bar, found.missing) == (bar, [])
    assert found.mean == pytest.approx(factor)
    assert all(row.case["kv_bytes_16bit"] >= LEAST_BYTES for row in found.rows)
    assert len(found.rows) == 26
    big = attention_cases("llama3-70b")[-1]
    fewer = [r for r in records if r["case"] != big or r["backend"] != "vllm-fa3-bf16"]
    found = verdict(fewer)
    assert found.bar == "incomplete"
    assert found.missing == ["llama3-70b, batch 256, context 4096"]
    assert verdict([]).mean is None


def test_without_a_gpu_the_command_writes_why_and_the_memory(tmp_path, monkeypatch):
    absent = {"gpu": None, "gpu_missing": "no NVIDIA driver answers"}
    monkeypatch.setattr(attention_bench.capability, "detect", lambda: absent)
    assert main(["bench", "attention", "llama3-8b", "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "attention.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    skipped = [r for r in records if r["status"] == "skipped"]
    assert len(skipped) == len(attention_jobs("llama3-8b")) * len(BACKENDS)
    assert "no NVIDIA driver" in skipped[0]["reason"]
    models = {r["case"]["model"] for r in records if r["metric"] == "kv_bytes_per_token"}
    assert models == set(MODELS)


def test_the_command_lists_what_would_run(capsys):
    assert main(["bench", "attention", "--list", "--shard", "1/2"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("llama2-7b batch 1 context 1024: comet-kv4 sdpa")
    assert "22 cases, about" in said.err


def test_the_command_says_what_the_run_reaches(tmp_path, monkeypatch, capsys):
    measured = [Measurement(**record) for record in reference_run(2.7)]
    monkeypatch.setattr(attention_bench, "attention_records", lambda *_: measured)
    assert main(["bench", "attention", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "over 26 of 26 rows of this run" in said and "Reached: good." in said
    assert "append of a token was not measured" in said
