# SPDX-License-Identifier: Apache-2.0
"""How well a GEMM uses the GPU: hardware counters where they are permitted, NVML always."""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from comet.measurements import Measurement, environment, provenance, skipped
from comet.speed import capability, profile_ncu, profile_replay
from comet.speed.bench import GPU_HINT
from comet.speed.cases import gemm_cases

COUNTED = {
    "tensor_pipe_utilisation": "percent",
    "issue_slot_utilisation": "percent",
    "sm_throughput": "percent",
    "dram_throughput": "percent",
    "l2_throughput": "percent",
    "busy_fraction": "percent",
    "sm_balance": "percent",
    "cycles_active_min": "cycles",
    "cycles_active_avg": "cycles",
    "cycles_active_max": "cycles",
    "time_profiled": "us",
}
WATCHED = {
    "sm_clock": "MHz",
    "power": "W",
    "temperature": "degC",
    "gpu_utilisation": "percent",
    "memory_utilisation": "percent",
    "gpm_sm_utilisation": "percent",
    "gpm_tensor_utilisation": "percent",
    "gpm_dram_utilisation": "percent",
}
# What stands for all of them where there is nothing.
COUNTED_SIGN, WATCHED_SIGN = "tensor_pipe_utilisation", "power"


@dataclass(frozen=True)
class ProfileOptions:
    """How long to look.

    Attributes:
        repeats: runs of each kernel under the counters, one sample each.
        watch_seconds: time for which a kernel is looped while NVML is read; 0 leaves that out.
    """

    repeats: int = 3
    watch_seconds: float = 0.5


def profile_cases(models: list[str], m: list[int], layers: list[str]) -> list[dict]:
    """The gemm cases to look at.

    Args:
        models, m: as ``comet.speed.cases.gemm_cases``.
        layers: names of layers to keep; all where it is empty.
    """
    cases = [case for model in models for case in gemm_cases(model, m)]
    return [case for case in cases if not layers or case["layer"] in layers]


def profile_records(
    cases: list[dict],
    backends: list[str],
    library: Path,
    config: dict,
    seed: int,
    options: ProfileOptions,
) -> list[Measurement]:
    """Look at every case with every backend.

    Args:
        cases: gemm cases.
        backends: names of ``comet.speed.backends``.
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws the operands.

    Returns:
        The metrics of ``COUNTED`` and ``WATCHED`` of each case and backend, all of one ``run_id``.
        Where counters or readings are missing, one skipped or failed record stands for each group.
    """
    found = capability.detect()
    items = [(case, backend) for case in cases for backend in backends]
    if not found["gpu"]:
        source = {"environment": environment(), "provenance": provenance(config, seed)}
        reason = f"{found['gpu_missing']}; {GPU_HINT}"
        signs = (COUNTED_SIGN, WATCHED_SIGN)
        return [absent(item, sign, reason, source) for item in items for sign in signs]
    from comet.speed.profile_watch import device_environment, watch

    os.environ["COMET_LIBRARY"] = str(library)
    source = {"environment": device_environment(), "provenance": provenance(config, seed)}
    records = _counted(items, options.repeats, seed, source)
    if options.watch_seconds > 0:
        records += [r for item in items for r in watch(item, options.watch_seconds, seed, source)]
    return records


def absent(item, metric: str, reason: str, source: dict, status: str = "skipped") -> Measurement:
    """A record that says why a metric of a (case, backend) is not there."""
    case, backend = item
    unit = (COUNTED | WATCHED)[metric]
    if status == "skipped":
        return skipped("profile", case, metric, unit, backend, reason, **source)
    fields = {"status": status, "reason": reason, **source}
    return Measurement("profile", case, metric, unit, backend, **fields)


def _counted(items: list, repeats: int, seed: int, source: dict) -> list[Measurement]:
    """All items under Nsight Compute in one run, which takes seconds to start."""
    try:
        ncu = profile_ncu.find_ncu()
        metrics = profile_ncu.choose_metrics(ncu)
        kernels, said = _replayed(ncu, metrics, items, repeats, seed)
    except profile_ncu.CountersMissing as missing:
        return [absent(item, COUNTED_SIGN, str(missing), source) for item in items]
    records = []
    for number, item in enumerate(items):
        runs = [
            [k for k in kernels if k.range == profile_replay.label(number, repeat)]
            for repeat in range(repeats)
        ]
        records += _of_item(item, [run for run in runs if run], said[number], metrics, source)
    return records


def _replayed(ncu: str, metrics: dict, items: list, repeats: int, seed: int) -> tuple[list, list]:
    """Counted kernels, and what each item's backend said of itself."""
    with tempfile.TemporaryDirectory() as folder:
        plan, out, log = (Path(folder, name) for name in ("plan.json", "said.jsonl", "ncu.csv"))
        profile_replay.write_plan(plan, items, repeats, seed)
        program = [sys.executable, "-m", "comet.speed.profile_replay", str(plan), str(out)]
        try:
            kernels = profile_ncu.count(ncu, metrics, program, log)
        except profile_ncu.CountersMissing:
            kernels = []
            # Where no backend ran, its own reason says more than the profiler's.
            if '"ok"' in _text(out) or not _text(out):
                raise
        lines = _text(out).splitlines()
    lost = {"status": "failed", "reason": "the profiled program ended before this kernel"}
    said = [json.loads(line) for line in lines]
    return kernels, said + [lost] * (len(items) - len(said))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _of_item(item, runs: list, said: dict, metrics: dict, source: dict) -> list[Measurement]:
    if said["status"] != "ok":
        return [absent(item, COUNTED_SIGN, said["reason"], source, said["status"])]
    if not runs:
        reason = "Nsight Compute saw no kernel of this backend"
        return [absent(item, COUNTED_SIGN, reason, source, "failed")]
    case, backend = item
    method = {
        "tool": "Nsight Compute, kernel replay, caches flushed before each pass, clocks free",
        "counters": metrics,
        "kernels": [[k.name, k.values.get("duration")] for k in runs[0]],
        "not_counted": "activation quantization, launch from the host",
    }
    method |= said["details"]
    samples: dict[str, list[float]] = {}
    for run in runs:
        for metric, value in of_call([kernel.values for kernel in run]).items():
            samples.setdefault(metric, []).append(value)
    return [
        Measurement(
            "profile", case, metric, COUNTED[metric], backend, values, None, method, **source
        )
        for metric, values in samples.items()
    ]


def of_call(kernels: list[dict[str, float]]) -> dict[str, float]:
    """Metrics of a call from the counters of its kernels.

    Percentages are weighted by the kernels' time, cycles and times are added.
    ``busy_fraction`` is the mean of the SMs' active cycles over the elapsed ones, ``sm_balance``
    over those of the SM that was active the longest.
    """
    time = sum(k["duration"] for k in kernels)
    found = {"time_profiled": time}
    for metric, unit in COUNTED.items():
        values = [k[metric] for k in kernels if metric in k]
        if len(values) < len(kernels):
            continue
        if unit == "cycles":
            found[metric] = sum(values)
        else:
            shares = [k["duration"] / time for k in kernels]
            found[metric] = sum(v * share for v, share in zip(values, shares, strict=True))
    if "cycles_active_avg" in found:
        active = found["cycles_active_avg"]
        if all("cycles_elapsed" in k for k in kernels):
            found["busy_fraction"] = 100 * active / sum(k["cycles_elapsed"] for k in kernels)
        if found.get("cycles_active_max"):
            found["sm_balance"] = 100 * active / found["cycles_active_max"]
    return {metric: found[metric] for metric in COUNTED if metric in found}
