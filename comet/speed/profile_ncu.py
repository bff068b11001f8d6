# SPDX-License-Identifier: Apache-2.0
"""Hardware counters through Nsight Compute: which metrics, one run, its table read."""

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from comet import hints
from comet.measurements import REPOSITORY

NCU = "COMET_NCU"
# Quantity -> names of the counter, the best first; they differ between chips.
PERCENT = ".avg.pct_of_peak_sustained_elapsed"
PREFERENCES = {
    "tensor_pipe_utilisation": (
        "sm__pipe_tensor_cycles_active" + PERCENT,
        "sm__inst_executed_pipe_tensor" + PERCENT,
        "sm__pipe_tensor_op_hmma_cycles_active" + PERCENT,
    ),
    "issue_slot_utilisation": (
        "smsp__issue_active" + PERCENT,
        "smsp__inst_issued" + PERCENT,
        "sm__inst_issued" + PERCENT,
    ),
    "sm_throughput": ("sm__throughput" + PERCENT,),
    "dram_throughput": ("dram__throughput" + PERCENT, "dram__bytes" + PERCENT),
    "l2_throughput": ("lts__throughput" + PERCENT, "lts__t_bytes" + PERCENT),
    "cycles_active_min": ("sm__cycles_active.min",),
    "cycles_active_avg": ("sm__cycles_active.avg",),
    "cycles_active_max": ("sm__cycles_active.max",),
    "cycles_elapsed": ("sm__cycles_elapsed.max",),
    "duration": ("gpu__time_duration.sum",),
}
UNIT_IN_US = {
    "ns": 1e-3,
    "nsecond": 1e-3,
    "us": 1.0,
    "usecond": 1.0,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
}
REFUSED = "ERR_NVGPUCTRPERM"
REFUSED_HINT = (
    "the driver refuses hardware counters to this user (ERR_NVGPUCTRPERM); "
    + hints.COUNTERS_REFUSED
)
MISSING_HINT = f"Nsight Compute (ncu) is not on PATH; {hints.COUNTERS_MISSING}"


class CountersMissing(Exception):
    """There are no hardware counters; the message says why and what to do."""


@dataclass(frozen=True)
class Kernel:
    """What was counted in one launch.

    Attributes:
        range: label of the NVTX range around the launch.
        name: of the kernel.
        values: quantity of ``PREFERENCES`` -> value: percent of peak, cycles, or microseconds; a
            counter that the chip does not have is absent.
    """

    range: str
    name: str
    values: dict[str, float]


def find_ncu() -> str:
    """Path of Nsight Compute.

    Raises:
        CountersMissing: it is not installed.
    """
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "ncu")
    found = shutil.which(os.environ.get(NCU, "ncu")) or shutil.which(str(toolkit))
    if not found:
        raise CountersMissing(MISSING_HINT)
    return found


def installed() -> str | None:
    """Path of Nsight Compute, or None: part of what this machine can measure."""
    try:
        return find_ncu()
    except CountersMissing:
        return None


def choose_metrics(ncu: str) -> dict[str, str]:
    """Quantity -> the first counter of ``PREFERENCES`` that this GPU has.

    Raises:
        CountersMissing: the GPU has none of them.
    """
    listed = _run([ncu, "--query-metrics"])
    known = set(re.findall(r"^(\w+__\w+)", listed.stdout, re.MULTILINE))
    if not known:
        raise CountersMissing(_complaint(listed.stdout + listed.stderr, listed.returncode))
    chosen = {}
    for quantity, names in PREFERENCES.items():
        have = [name for name in names if name.partition(".")[0] in known]
        if have:
            chosen[quantity] = have[0]
    return chosen


def count(ncu: str, metrics: dict[str, str], program: list[str], log: Path) -> list[Kernel]:
    """Run a program under the counters, from where it starts the profiler; clocks stay free.

    Args:
        ncu: path of Nsight Compute.
        metrics: as ``choose_metrics`` gives them.
        program: command line.
        log: file for the profiler's output.

    Raises:
        CountersMissing: counters were refused, or nothing was profiled.
    """
    done = _run(
        [
            *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
            *("--metrics", ",".join(dict.fromkeys(metrics.values())), "--nvtx"),
            *("--clock-control", "none", "--profile-from-start", "off"),
            *("--target-processes", "all", *program),
        ]
    )
    text = log.read_text(encoding="utf-8") if log.is_file() else done.stdout
    kernels = read_kernels(text, metrics)
    if not kernels:
        raise CountersMissing(_complaint(text + done.stdout + done.stderr, done.returncode))
    return kernels


def _run(command: list[str]) -> subprocess.CompletedProcess:
    """A child that finds this package wherever it was started from."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def _complaint(text: str, status: int) -> str:
    """Why nothing was counted, in one line."""
    if REFUSED in text:
        return REFUSED_HINT
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR==")]
    said = [line for line in lines if not line.startswith("==")]
    words = [*errors[:1], *said[-1:]] or ["it printed nothing"]
    return f"Nsight Compute counted nothing (exit status {status}): {'; '.join(words)}"


def read_kernels(text: str, metrics: dict[str, str]) -> list[Kernel]:
    """Kernels of a table of ``ncu --csv --page raw``, with messages around it.

    The first row names the columns, the second the units, the rest are launches in order.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return []
    table = (line for line in lines[start:] if line.startswith('"'))
    header, units, *rows = csv.reader(io.StringIO("\n".join(table)))
    unit = dict(zip(header, units, strict=False))
    return [_kernel(dict(zip(header, row, strict=False)), unit, metrics) for row in rows]


def _kernel(row: dict[str, str], unit: dict[str, str], metrics: dict[str, str]) -> Kernel:
    ranges = (value for column, value in row.items() if "_Range:" in column)
    values = {}
    for quantity, column in metrics.items():
        value = _number(row.get(column, ""))
        scale = UNIT_IN_US.get(unit.get(column, "")) if quantity == "duration" else 1.0
        if value is not None and scale is not None:
            values[quantity] = value * scale
    return Kernel(_label(ranges), row["Kernel Name"], values)


def _label(columns: Iterable[str]) -> str:
    """Innermost range of columns such as ``13416 "<default domain>:name:none:none:..."``."""
    found = [name for column in columns for name in re.findall(r":(comet-[^:\"]+)", column)]
    return found[-1] if found else ""


def _number(text: str) -> float | None:
    """A number with thousands separators; None for ``n/a`` and an empty place."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
