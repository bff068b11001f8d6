# SPDX-License-Identifier: Apache-2.0
"""Time GEMM cases with every backend side by side in one process."""

import gc
import os
from pathlib import Path

import torch
from tqdm import tqdm

from comet.measurements import Measurement, provenance, skipped
from comet.speed import nvml
from comet.speed.backends import GemmShape, Unavailable, Workload, backend_of
from comet.speed.gpu_environment import gpu_environment
from comet.speed.timer import DEFAULT, TimerOptions, time_graph


def measure(
    cases: list[dict],
    backends: list[str],
    library: Path,
    config: dict,
    seed: int,
    options: TimerOptions = DEFAULT,
) -> list[Measurement]:
    """Time every case with every backend; all share one ``run_id``.

    Backends of one case follow each other, so that a drifting clock hits all of them.

    Args:
        cases: gemm cases; read are ``m``, ``n``, ``k`` and ``int4_share``.
        backends: names of ``comet.speed.backends``.
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws the operands.
        options: of the timer.

    Returns:
        ``time`` of each case and backend, and ``time_with_quantization`` where it is offered, in
        microseconds; ``skipped`` or ``failed`` with the reason otherwise.

    Raises:
        UserError: a backend is unknown.
    """
    for name in backends:
        backend_of(name)
    os.environ["COMET_LIBRARY"] = str(library)
    device = torch.device("cuda", torch.cuda.current_device())
    source = {"environment": gpu_environment(device), "provenance": provenance(config, seed)}
    records = []
    for case in tqdm(cases, "time GEMMs", unit="case"):
        for name in backends:
            torch.manual_seed(seed)
            records += _measure_one(case, name, device, source, options)
    return records


def _measure_one(case, name, device, source, options) -> list[Measurement]:
    shape = GemmShape(case["m"], case["n"], case["k"], case["int4_share"])
    try:
        return _time(case, name, backend_of(name).load(shape, device), source, options)
    except Unavailable as missing:
        return [skipped("gemm", case, "time", "us", name, str(missing), **source)]
    except (RuntimeError, AttributeError) as error:  # a rival refused its operands
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        fields = {"status": "failed", "reason": reason, **source}
        return [Measurement("gemm", case, "time", "us", name, **fields)]
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _time(case, name, workload: Workload, source: dict, options) -> list[Measurement]:
    records = []
    timed = {"time": workload.calls, "time_with_quantization": workload.with_quantization}
    for metric, calls in timed.items():
        if not calls:
            continue
        before = nvml.sample()
        samples = time_graph(calls, options)
        gpu = {"gpu_before": before, "gpu_after": nvml.sample()}
        not_timed = "launch from the host" + (
            "" if metric == "time_with_quantization" else ", activation quantization"
        )
        method = options.method() | {"not_timed": not_timed} | workload.details
        fields = source | {"environment": source["environment"] | gpu}
        records.append(
            Measurement("gemm", case, metric, "us", name, samples, method=method, **fields)
        )
    return records
