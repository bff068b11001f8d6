# SPDX-License-Identifier: Apache-2.0
"""Time decode attention with every backend side by side in one process."""

import gc
import statistics
from pathlib import Path

import torch
from tqdm import tqdm

from comet.kernels.variants import using
from comet.measurements import Measurement, case_id, skipped
from comet.speed import nvml
from comet.speed.attention_backends import AttentionShape, attention_backend_of
from comet.speed.backends import Unavailable, Unsupported, Workload
from comet.speed.cases import Job
from comet.speed.gemm import Session, library_source, open_session
from comet.speed.kept import KeptCases
from comet.speed.timer import DEFAULT, TimerOptions, time_graph


class KeptAttention(KeptCases):
    """Records of finished attention cases in a folder."""

    def path(self, job: Job) -> Path:
        """File of a job's records."""
        name = "b{batch}-c{context}".format(**job.case)
        return self._folder / f"{case_id('attention', job.case, name)}.jsonl"


def measure_attention(
    jobs: list[Job],
    library: Path,
    config: dict,
    seed: int,
    options: TimerOptions = DEFAULT,
    keep: Path | None = None,
) -> list[Measurement]:
    """Time every job; all that is measured shares one ``run_id``.

    Args:
        jobs: cases of ``comet.speed.attention_cases`` and backends.
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws queries and caches.
        options: of the timer.
        keep: folder of finished cases, as in ``comet.speed.gemm.measure``.

    Returns:
        ``time`` in microseconds of each case and backend; for COMET's also the same without
        overlapping launches, ``append_time``, the mean of 64 steps, and ``append_share``, that in
        percent of ``time``. ``skipped`` or
        ``failed`` with the reason otherwise.

    Raises:
        UserError: a backend is unknown.
    """
    for name in {name for job in jobs for name in job.backends}:
        attention_backend_of(name)
    built = library_source(library)
    session = open_session(built, config, seed, options)
    kept = KeptAttention(keep, session.source["environment"], built) if keep else None
    records = []
    with using(library):
        for job in tqdm(jobs, "time attention", unit="case"):
            found = kept.finished(job) if kept else None
            if not found:
                found = [r for name in job.backends for r in measure_one(job.case, name, session)]
                if kept:
                    kept.keep(job, found)
            records += found
    return records


def measure_one(case: dict, name: str, session: Session) -> list[Measurement]:
    """Records of one case and backend."""
    torch.manual_seed(session.seed)
    try:
        workload = attention_backend_of(name).load(AttentionShape.of(case), session.device)
        check_output(workload.calls[0](), AttentionShape.of(case))
        return _time(case, name, workload, session)
    except Unavailable as missing:
        method = {"unsupported": True} if isinstance(missing, Unsupported) else {}
        fields = {"method": method, **session.source}
        return [skipped("attention", case, "time", "us", name, str(missing), **fields)]
    except (RuntimeError, AttributeError, ImportError) as error:  # a rival refused its operands
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        fields = {"status": "failed", "reason": reason, **session.source}
        return [Measurement("attention", case, "time", "us", name, **fields)]
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def check_output(out: torch.Tensor, shape: AttentionShape) -> None:
    """Refuse an output that no attention over random values can give.

    Raises:
        RuntimeError: its size is wrong, or it holds zeros only or numbers that are not finite.
    """
    wanted = shape.batch * shape.heads * shape.head_dim
    if out.numel() != wanted:
        raise RuntimeError(f"the output has {out.numel()} elements, not {wanted}")
    if not out.isfinite().all() or not out.any():
        raise RuntimeError("the output is zero or not finite")


def _time(case: dict, name: str, workload: Workload, session: Session) -> list[Measurement]:
    records = []
    for metric, calls in {"time": workload.calls, **workload.besides}.items():
        before = nvml.sample()
        samples = time_graph(calls, session.options)
        gpu = {"gpu_before": before, "gpu_after": nvml.sample()}
        method = session.options.method() | {"not_timed": _not_timed(metric)} | workload.details
        method["l2_state"] = method["l2_state"].replace("weights", "KV caches")
        fields = session.source | {"environment": session.source["environment"] | gpu}
        fields["method"] = method
        records.append(Measurement("attention", case, metric, "us", name, samples, **fields))
    times = {record.metric: record for record in records}
    if "append_time" in times:
        records.append(_share(times["append_time"], times["time"].median))
    return records


def _not_timed(metric: str) -> str:
    beside = "" if metric == "append_time" else ", append of the new token, scheduling of the step"
    return f"launch from the host{beside}"


def _share(append: Measurement, decode: float) -> Measurement:
    """The append in percent of decode."""
    samples = [100 * sample / decode for sample in append.samples]
    fields = {
        "median": statistics.median(samples),
        "method": append.method | {"decode_us": decode},
        "environment": append.environment,
        "provenance": append.provenance,
    }
    case, backend = append.case, append.backend
    return Measurement("attention", case, "append_share", "percent", backend, samples, **fields)
