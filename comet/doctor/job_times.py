# SPDX-License-Identifier: Apache-2.0
"""How long the jobs of a target take: earlier runs here, and what kernels took on an H200."""

import csv
from collections.abc import Iterable
from pathlib import Path

from comet import config as configuration
from comet.doctor.targets import Target, by_fmpq


def benchmark_files(target: Target, config: dict) -> list[str] | None:
    """Names of the benchmark files of a target's jobs; None where some jobs have none."""
    timed = {"accuracy", "quantize", "memory"}
    if target.name == "inputs" or not target.kinds or not set(target.kinds) <= timed:
        return None
    cases, files = configuration.accuracy_cases(config), []
    if "accuracy" in target.kinds:
        files += [f"accuracy-{case}.tsv" for case in cases]
    for case in cases.values():
        if by_fmpq(case):
            files.append(f"quantize-{case['model']}-{case['checkpoint']}.tsv")
        elif case["checkpoint"] and "accuracy" in target.kinds:
            files.append(f"method-{case['model']}-{case['checkpoint']}.tsv")
    if target.kinds == ["memory"]:
        files = [f"memory-{model}.tsv" for model in config["memory"]["models"]]
    return list(dict.fromkeys(files))


def minutes_of_earlier_runs(files: Iterable[Path], at_once: int) -> float | None:
    """About how long jobs take that took what their benchmark files say; None if one is missing.

    Args:
        files: benchmark files that Snakemake wrote, one a job.
        at_once: jobs that run side by side.
    """
    seconds = [_seconds(path) for path in files]
    if not seconds or None in seconds:
        return None
    return max(sum(seconds) / at_once, max(seconds)) / 60


def gpu_minutes(target: Target, config: dict) -> float | None:
    """Estimated time of a target that only times kernels on a GPU, None for others."""
    from comet.speed import attention_bench, bench
    from comet.speed.attention_cases import attention_jobs
    from comet.speed.cases import jobs_of

    if not target.kinds or not set(target.kinds) <= {"gemm", "attention"}:
        return None
    seconds = 0.0
    if "gemm" in target.kinds:
        settings = config["gemm"]
        batches = dict.fromkeys(settings["models"], settings["m"]) | settings.get("suites", {})
        for name, m in batches.items():
            own = name in ("modes", "ablations")
            seconds += bench.estimated_seconds(
                jobs_of(name, m, None if own else settings["backends"])
            )
    if "attention" in target.kinds:
        for name in config["attention"]["models"]:
            jobs = attention_jobs(name, config["attention"]["backends"])
            seconds += attention_bench.estimated_seconds(jobs)
    return seconds / 60


def _seconds(path: Path) -> float | None:
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            return float(next(csv.DictReader(stream, delimiter="\t"))["s"])
    except (OSError, StopIteration, KeyError, ValueError):
        return None
