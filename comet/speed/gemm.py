# SPDX-License-Identifier: Apache-2.0
"""Time GEMM cases with every backend side by side in one process."""

import gc
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from comet.files import sha256_of
from comet.kernels import plan_table
from comet.kernels.library import INFO_NAME
from comet.kernels.variants import using
from comet.measurements import Measurement, provenance, skipped
from comet.speed import nvml
from comet.speed.backends import (
    GemmShape,
    MeasuredElsewhere,
    Unavailable,
    Unsupported,
    Workload,
    backend_of,
)
from comet.speed.cases import Job
from comet.speed.gpu_environment import gpu_environment
from comet.speed.kept import KeptCases
from comet.speed.timer import DEFAULT, TimerOptions, time_graph


@dataclass(frozen=True)
class Session:
    """What all measurements of a process share: device, seed, timer, and the records' source."""

    device: torch.device
    seed: int
    options: TimerOptions
    source: dict


def measure(
    jobs: list[Job],
    library: Path,
    config: dict,
    seed: int,
    options: TimerOptions = DEFAULT,
    keep: Path | None = None,
) -> list[Measurement]:
    """Time every job; all that is measured shares one ``run_id``.

    Backends of one case follow each other, so that a drifting clock hits all of them.

    Args:
        jobs: cases and backends.
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws the operands.
        options: of the timer.
        keep: folder of finished cases. What is finished there is taken over, with the ``run_id``
            of its run; what is finished now is written there at once.

    Returns:
        ``time`` of each case and backend, and the metrics that COMET's backend adds, in
        microseconds; ``skipped`` or ``failed`` with the reason otherwise.

    Raises:
        UserError: a backend is unknown.
    """
    for name in {name for job in jobs for name in job.backends}:
        backend_of(name)
    built = library_source(library) | {"plans_sha256": sha256_of(Path(plan_table.__file__))}
    session = open_session(built, config, seed, options)
    kept = KeptCases(keep, session.source["environment"], built) if keep else None
    finished = {number: kept.finished(job) for number, job in enumerate(jobs)} if kept else {}
    records = []
    with using(library):
        _prepare([job for number, job in enumerate(jobs) if not finished.get(number)], session)
        for number, job in enumerate(tqdm(jobs, "time GEMMs", unit="case")):
            found = finished.get(number)
            if not found:
                found = measure_job(job, session)
                if kept:
                    kept.keep(job, found)
            records += found
    return records


def open_session(built: dict, config: dict, seed: int, options: TimerOptions) -> Session:
    """The session of the current GPU.

    Args:
        built: what the kernel library was built from, for the records' provenance.
        config, seed: for provenance; the seed also draws the operands.
        options: of the timer.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    gc.freeze()  # garbage is collected after each case; searching all modules takes 0.1 to 0.7 s
    source = {
        "environment": gpu_environment(device),
        "provenance": provenance(config, seed) | {"library": built},
    }
    return Session(device, seed, options, source)


def library_source(library: Path) -> dict:
    """From which sources the library was built; empty where its description is missing."""
    path = library.with_name(INFO_NAME)
    if not path.is_file():
        return {}
    info = json.loads(path.read_text(encoding="utf-8"))
    return {"csrc_commit": info.get("git_commit"), "source_sha256": info.get("source_sha256")}


def _prepare(jobs: list[Job], session: Session) -> None:
    """Let backends that measure in a process of their own do so for all shapes at once."""
    for name in dict.fromkeys(name for job in jobs for name in job.backends):
        shapes = [GemmShape.of(job.case) for job in jobs if name in job.backends]
        backend_of(name).prepare(shapes, session.seed)


def measure_job(job: Job, session: Session) -> list[Measurement]:
    """Records of one case, all backends."""
    return [record for name in job.backends for record in measure_one(job.case, name, session)]


def measure_one(case: dict, name: str, session: Session) -> list[Measurement]:
    """Records of one case and backend."""
    torch.manual_seed(session.seed)
    try:
        workload = backend_of(name).load(GemmShape.of(case), session.device)
        return _time(case, name, workload, session)
    except Unavailable as missing:
        method = {"unsupported": True} if isinstance(missing, Unsupported) else {}
        fields = {"method": method, **session.source}
        return [skipped("gemm", case, "time", "us", name, str(missing), **fields)]
    except (RuntimeError, AttributeError) as error:  # a rival refused its operands
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        fields = {"status": "failed", "reason": reason, **session.source}
        return [Measurement("gemm", case, "time", "us", name, **fields)]
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _time(
    case: dict, name: str, workload: Workload | MeasuredElsewhere, session: Session
) -> list[Measurement]:
    if isinstance(workload, MeasuredElsewhere):
        fields = {"method": workload.method, **session.source}
        return [Measurement("gemm", case, "time", "us", name, workload.samples, **fields)]
    records = []
    for metric, calls in {"time": workload.calls, **workload.besides}.items():
        before = nvml.sample()
        samples = time_graph(calls, session.options)
        gpu = {"gpu_before": before, "gpu_after": nvml.sample()}
        fields = session.source | {"environment": session.source["environment"] | gpu}
        method = session.options.method() | {"not_timed": _not_timed(metric)} | workload.details
        fields["method"] = method
        records.append(Measurement("gemm", case, metric, "us", name, samples, **fields))
    return records


def _not_timed(metric: str) -> str:
    if metric in ("time", "time_without_overlap"):
        return "launch from the host, activation quantization"
    return "launch from the host" + ("" if metric.startswith("time_with") else ", the GEMM")
