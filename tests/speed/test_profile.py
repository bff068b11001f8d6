# SPDX-License-Identifier: Apache-2.0
"""Profiles: the table of Nsight Compute, refused and absent counters, NVML; no GPU is needed."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from nvml_machine import Machine

from comet.speed import (
    backends,
    nvml,
    nvml_gpm,
    profile,
    profile_ncu,
    profile_replay,
    profile_watch,
)
from comet.speed.backends import Unavailable, Workload
from comet.speed.profile import ProfileOptions, of_call, profile_cases, profile_records

RANGES = (
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
)
METRICS = {quantity: names[0] for quantity, names in profile_ncu.PREFERENCES.items()}
LIST = """Device NVIDIA H200 (GH100)
---------------------------------- ----------- ---------- -------------------------------
Metric Name                        Metric Type Metric Unit Metric Description
---------------------------------- ----------- ---------- -------------------------------
{names}
"""
CASES = profile_cases(["reference"], [16], ["gate_up"])[:1]
BACKENDS = ["comet-w4ax", "cublas-bf16"]
ITEMS = [(case, name) for case in CASES for name in BACKENDS]
GPU = {"gpu": "NVIDIA Fake", "gpu_missing": None}


def table(rows: list[tuple[str, str, dict]], metrics=METRICS) -> str:
    """What ``ncu --csv --page raw --nvtx`` prints: messages, columns, units, one line a launch."""

    def line(cells) -> str:
        return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells)

    fixed = ["ID", "Process ID", "Process Name", "Host Name", *RANGES]
    fixed += ["Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
    units = [
        "cycle" if q.startswith("cycles") else "ns" if q == "duration" else "%" for q in metrics
    ]
    lines = ["==PROF== Connected to process 71 (/usr/bin/python3.12)"]
    lines.append('==PROF== Profiling "gemm" - 0: 0%....50%....100% - 9 passes')
    lines += [line([*fixed, *metrics.values()]), line([""] * len(fixed) + units)]
    for number, (label, kernel, values) in enumerate(rows):
        within = f'71  "<default domain>:{label}:none:none:none:none:none:none"'
        cells = [number, 71, "python3.12", "127.0.0.1", within, "", kernel, 1, 7]
        cells += ["(384, 1, 1)", "(132, 1, 1)", 0, "9.0"]
        lines.append(line([*cells, *(values.get(q, "n/a") for q in metrics)]))
    return "\n".join([*lines, "==PROF== Disconnected from process 71", ""])


def counters(duration: str, tensor: str = "50.00") -> dict:
    values = dict.fromkeys(METRICS, "20.5") | {
        "duration": duration,
        "tensor_pipe_utilisation": tensor,
    }
    cycles = {"min": "1,000", "avg": "1,500.25", "max": "2,000"}
    values |= {f"cycles_active_{which}": number for which, number in cycles.items()}
    return values | {"cycles_elapsed": "3,000"}


def test_a_table_in_the_profilers_own_format():
    text = table([("comet-0-0", "void gemm<1, 2>(int)", counters("12,345.60")), ("", "other", {})])
    first, second = profile_ncu.read_kernels(text, METRICS)
    assert (first.range, first.name) == ("comet-0-0", "void gemm<1, 2>(int)")
    assert first.values["duration"] == pytest.approx(12.3456)
    assert first.values["cycles_active_avg"] == 1500.25
    assert second.range == "" and second.values == {}


def test_other_units_of_time_and_messages_alone():
    text = table([("comet-0-0", "gemm", counters("1,205.00"))]).replace('"ns"', '"usecond"')
    assert profile_ncu.read_kernels(text, METRICS)[0].values["duration"] == 1205
    assert profile_ncu.read_kernels("==WARNING== No kernels were profiled.\n", METRICS) == []


def test_several_kernels_of_a_call_count_by_their_time():
    long, short = ({"duration": d, "dram_throughput": p} for d, p in ((30.0, 80.0), (10.0, 40.0)))
    long |= {"cycles_active_avg": 90.0, "cycles_active_max": 100.0, "cycles_elapsed": 120.0}
    short |= {"cycles_active_avg": 10.0, "cycles_active_max": 25.0, "cycles_elapsed": 80.0}
    found = of_call([long, short])
    assert found["time_profiled"] == 40
    assert found["dram_throughput"] == pytest.approx(70)
    assert found["busy_fraction"] == pytest.approx(50)
    assert found["sm_balance"] == pytest.approx(80)
    assert "tensor_pipe_utilisation" not in found


PROGRAM = """#!{python}
import json, sys
arguments = sys.argv[1:]
if "--query-metrics" in arguments:
    print({listed!r})
    sys.exit({query_status})
log = arguments[arguments.index("--log-file") + 1]
plan, out = arguments[-2:]
assert "none" == arguments[arguments.index("--clock-control") + 1]
with open(log, "w") as stream:
    stream.write({text!r})
with open(out, "w") as stream:
    for said in {said!r}[: len(json.load(open(plan))["items"])]:
        stream.write(json.dumps(said) + "\\n")
sys.exit({status})
"""


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Makes a program that answers as Nsight Compute does, and a GPU that is found."""
    monkeypatch.setattr(profile.capability, "detect", lambda: GPU)
    monkeypatch.setattr(profile_watch, "device_environment", lambda: {"device": "NVIDIA Fake"})

    def make(
        text: str, said=({"status": "ok", "details": {"copies": 3}},) * 2, names=None, status=0
    ):
        names = names or [metric.partition(".")[0] for metric in METRICS.values()]
        listed = LIST.format(names="\n".join(f"{name}   Counter   cycle   # of" for name in names))
        path = tmp_path / "ncu"
        fields = {"python": sys.executable, "listed": listed, "query_status": 0}
        fields |= {"text": text, "said": list(said), "status": status}
        path.write_text(PROGRAM.format(**fields), encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("COMET_NCU", str(path))

    return make


def records(repeats: int = 2) -> list:
    options = ProfileOptions(repeats=repeats, watch_seconds=0)
    return profile_records(CASES, BACKENDS, "library.so", {}, 0, options)


def test_counters_become_records_with_a_sample_a_repeat(fake_ncu):
    rows = [
        (
            profile_replay.label(item, repeat),
            "gemm",
            counters("2,000", tensor=f"{40 + item + repeat}"),
        )
        for item in range(2)
        for repeat in range(2)
    ]
    fake_ncu(table(rows))
    made = records()
    assert {r.kind for r in made} == {"profile"}
    assert {r.status for r in made} == {"ok"}
    assert {r.metric for r in made} == set(profile.COUNTED)
    tensor = [r for r in made if r.metric == "tensor_pipe_utilisation"]
    assert [(r.backend, r.samples) for r in tensor] == [
        ("comet-w4ax", [40, 41]),
        ("cublas-bf16", [41, 42]),
    ]
    assert tensor[0].unit == "percent"
    assert tensor[0].method["kernels"] == [["gemm", 2.0]]
    assert tensor[0].method["copies"] == 3
    assert len({r.provenance["run_id"] for r in made}) == 1


def test_a_chip_with_other_names_and_without_a_counter(fake_ncu):
    names = ["sm__inst_executed_pipe_tensor", "gpu__time_duration"]
    metrics = {
        "tensor_pipe_utilisation": profile_ncu.PREFERENCES["tensor_pipe_utilisation"][1],
        "duration": METRICS["duration"],
    }
    rows = [(profile_replay.label(i, 0), "gemm", counters("500")) for i in range(2)]
    fake_ncu(table(rows, metrics), names=names)
    made = records(repeats=1)
    assert {r.metric for r in made} == {"tensor_pipe_utilisation", "time_profiled"}
    assert made[0].method["counters"] == metrics


def test_refused_counters_say_the_fix(fake_ncu):
    refused = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have"
    fake_ncu(refused + " permission to access NVIDIA GPU Performance Counters\n", status=1)
    made = records()
    assert [(r.backend, r.status, r.metric) for r in made] == [
        (name, "skipped", "tensor_pipe_utilisation") for name in BACKENDS
    ]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in made[0].reason


def test_another_refusal_is_quoted(fake_ncu):
    fake_ncu("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", status=9)
    reason = records()[0].reason
    assert reason.endswith("(exit status 9): Failed to initialize the profiler: LibraryNotLoaded")


def test_no_ncu_has_its_own_reason(fake_ncu, monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_NCU", str(tmp_path / "absent"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(profile.capability, "detect", lambda: GPU)
    assert "not on PATH" in records()[0].reason


def test_a_backend_that_did_not_run_says_why(fake_ncu):
    rows = [(profile_replay.label(0, 0), "gemm", counters("500"))]
    said = [{"status": "ok", "details": {}}, {"status": "skipped", "reason": "no such library"}]
    fake_ncu(table(rows), said=said)
    (absent,) = [r for r in records(repeats=1) if r.backend == "cublas-bf16"]
    assert (absent.status, absent.reason) == ("skipped", "no such library")
    fake_ncu(table(rows), said=said[:1])
    (lost,) = [r for r in records(repeats=1) if r.backend == "cublas-bf16"]
    assert lost.status == "failed" and "ended before" in lost.reason
    fake_ncu("==WARNING== No kernels were profiled.\n", said=said[1:] * 2)
    assert {r.reason for r in records()} == {"no such library"}


def test_without_a_gpu_both_groups_are_skipped(monkeypatch):
    absent = {"gpu": None, "gpu_missing": "no NVIDIA driver answers"}
    monkeypatch.setattr(profile.capability, "detect", lambda: absent)
    made = records()
    assert [r.metric for r in made] == ["tensor_pipe_utilisation", "power"] * 2
    assert all(r.status == "skipped" and "no NVIDIA driver" in r.reason for r in made)


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Machine:
    """A GPU at its power limit."""
    made = Machine(monkeypatch, tmp_path)
    gpm = {"2": 97.5, "5": 88.0}
    made.has({"uuid": "GPU-a", "power_now": 412000, "clock": 1545, "throttled": 4, "gpm": gpm})
    return made


def watched(seconds: float = 0.2) -> nvml.Watch:
    with nvml.Watch(seconds=0.01) as seen:
        seen._thread.join(seconds)
    return seen


def test_nvml_is_read_while_a_kernel_runs(machine, monkeypatch):
    monkeypatch.setattr(nvml_gpm, "LEAST_SECONDS", 0.03)
    seen = watched(0.3)
    made = profile_watch.of_readings(ITEMS[0], seen, 640, 0.3, {})
    assert {r.metric: (r.median, r.unit) for r in made if r.status == "ok"} == {
        "sm_clock": (1545, "MHz"),
        "power": (412, "W"),
        "temperature": (51, "degC"),
        "gpu_utilisation": (99, "percent"),
        "memory_utilisation": (40, "percent"),
        "gpm_sm_utilisation": (97.5, "percent"),
        "gpm_tensor_utilisation": (88.0, "percent"),
    }
    (untold,) = [r for r in made if r.status != "ok"]
    assert untold.metric == "gpm_dram_utilisation" and "does not tell" in untold.reason
    kept = len(made[0].samples)
    assert kept < len(seen.samples["power"])
    assert 0 < len(seen.samples["gpm_sm_utilisation"]) < len(seen.samples["power"])
    assert made[0].method["throttle_reasons"] == ["power cap"]
    assert made[0].method["readings_slowed"] == f"{kept} of {kept}"


def test_a_gpu_without_performance_monitoring_is_read_all_the_same(machine):
    machine.has("GPU-a")
    made = profile_watch.of_readings(ITEMS[0], watched(0.1), 640, 0.1, {})
    told = {r.metric for r in made if r.status == "ok"}
    assert told == {name for name in profile.WATCHED if not name.startswith("gpm")}


def test_an_older_driver_tells_mean_power(machine):
    machine.has("GPU-a")
    assert watched(0.05).samples["power"][0] == 398


def test_the_gpu_that_cuda_uses_is_read(machine, monkeypatch):
    machine.has({"uuid": "GPU-a", "clock": 1000}, {"uuid": "GPU-b", "clock": 2000})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert nvml.sample()["sm_clock_mhz"] == 2000


def test_a_driver_that_does_not_answer_is_a_skipped_record(machine, monkeypatch):
    monkeypatch.delenv("FAKE_NVML")
    (record,) = profile_watch.of_readings(ITEMS[0], watched(0.05), 0, 0.05, {})
    assert record.status == "skipped" and "Driver Not Loaded" in record.reason
    assert nvml.sample() is None


def test_replay_warms_up_then_labels_each_run(monkeypatch, tmp_path):
    said, events = tmp_path / "said.jsonl", []

    def load(name):
        if name == "absent":
            raise Unavailable("no such library")
        if name == "broken":
            return Workload([lambda: torch.zeros(1).view(2)])
        calls = [lambda i=i: events.append(f"call {i}") for i in range(3)]
        return Workload(calls, details={"copies": 3})

    class Range:
        def __init__(self, label):
            self.label = label

        def __enter__(self):
            events.append(self.label)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(
        backends, "backend_of", lambda name: SimpleNamespace(load=lambda *_: load(name))
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "profile", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda.nvtx, "range", Range)
    items = [[CASES[0], name] for name in ("absent", "broken", "works")]
    profile_replay.replay({"items": items, "repeats": 2, "seed": 0}, said)
    absent, broken, works = map(json.loads, said.read_text(encoding="utf-8").splitlines())
    assert absent == {"status": "skipped", "reason": "no such library"}
    assert broken["status"] == "failed" and broken["reason"].startswith("RuntimeError: ")
    assert works == {"status": "ok", "details": {"copies": 3}}
    assert events == ["call 0", "call 1", "comet-2-0", "call 0", "comet-2-1", "call 1"]
