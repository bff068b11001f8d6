# SPDX-License-Identifier: Apache-2.0
"""Records of GEMM jobs: measured, or skipped with what is missing."""

from pathlib import Path

from comet import hints
from comet.measurements import Measurement, environment, provenance, skipped
from comet.speed import capability
from comet.speed.cases import Job

GPU_HINT = hints.GPU
SECONDS_A_BACKEND = 0.18  # operands, one metric; measured on an H200
SECONDS_A_QUANTIZATION = 0.07  # each of COMET's further metrics
FURTHER_METRICS = 5


def estimated_seconds(jobs: list[Job]) -> float:
    """About how long the jobs occupy a GPU, without the start of the process (about 15 s)."""
    seconds = 0.0
    for job in jobs:
        seconds += SECONDS_A_BACKEND * len(job.backends)
        own = sum(name.startswith("comet-w4a") for name in job.backends)
        seconds += SECONDS_A_QUANTIZATION * FURTHER_METRICS * own
    return seconds


def gemm_records(
    jobs: list[Job], library: Path, config: dict, seed: int, keep: Path | None = None
) -> list[Measurement]:
    """Time every job, or say why not.

    Args:
        jobs: cases and backends, from ``comet.speed.cases``.
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws the operands.
        keep: folder of finished cases; what is there is not measured again.

    Returns:
        Records of each case and backend, in microseconds; without a GPU all are skipped.
    """
    found = capability.detect()
    if found["gpu"]:
        from comet.speed.gemm import measure

        return measure(jobs, library, config, seed, keep=keep)
    return not_timed("gemm", jobs, f"{found['gpu_missing']}; {GPU_HINT}", config, seed)


def not_timed(
    kind: str, jobs: list[Job], reason: str, config: dict, seed: int
) -> list[Measurement]:
    """A skipped record of each case and backend.

    Args:
        kind: of the records.
        jobs: cases and backends.
        reason: what is missing and how to get it.
        config, seed: for provenance.
    """
    source = {"environment": environment(), "provenance": provenance(config, seed)}
    return [
        skipped(kind, job.case, "time", "us", backend, reason, **source)
        for job in jobs
        for backend in job.backends
    ]
