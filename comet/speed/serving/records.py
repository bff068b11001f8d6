# SPDX-License-Identifier: Apache-2.0
"""Records of serving jobs, one engine start after the other; a killed run goes on where it was."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from comet import hints
from comet.measurements import (
    Measurement,
    case_id,
    environment,
    provenance,
    read_records,
    skipped,
    write_records,
)
from comet.speed import capability
from comet.speed.backends import Unavailable
from comet.speed.serving import trtllm
from comet.speed.serving.cases import Load, ServingJob
from comet.speed.serving.engines import serve_with_vllm

METHOD = {
    "what": "generated tokens over the wall-clock time of all requests given at once, prefill "
    "included; greedy, end of text ignored, no prefix caching",
    "repeats": "short loads in vLLM run until they have taken 6 s or three times",
    "warm_up": "at most 32 requests with prompts of the same length and 8 output tokens",
    "start": "not timed; vLLM's default CUDA graphs and compilation for every engine, no ahead-of-"
    "time artifact saved, compiled Triton kernels shared between engines",
}
# Kernels do the same for any values, but the power and so the clock of a GPU depends on them.
WEIGHTS = {
    "vllm": "random of the model's shape, packed 4-bit ones and norms included",
    "trtllm": "what TensorRT-LLM's load_format dummy makes, not looked at",
}
# What must agree for engine starts to be one run: engines are compared within a run only.
SAME_MACHINE = ("device", "driver")
OURS = "vllm-comet"


def serving_records(
    jobs: list[ServingJob],
    config: dict,
    seed: int,
    repeats: int = 1,
    keep: Path | None = None,
    profile: bool = False,
) -> list[Measurement]:
    """``serving_starts``, all of them."""
    starts = serving_starts(jobs, config, seed, repeats, keep, profile)
    return [record for made in starts for record in made]


def serving_starts(
    jobs: list[ServingJob],
    config: dict,
    seed: int,
    repeats: int = 1,
    keep: Path | None = None,
    profile: bool = False,
) -> Iterator[list[Measurement]]:
    """Measure every job, or say why not; all that is measured shares one ``run_id``.

    Args:
        jobs: engine starts.
        config, seed: for provenance; the seed also draws the prompts.
        repeats: timed runs of each load, at least.
        keep: folder with a file for each finished job. A run that was killed goes on under its
            ``run_id`` and measures only what is missing: jobs that did not finish, and COMET's
            engines if they were of another commit. Starts on another GPU or driver, or of another
            run, are not taken over.
        profile: also record the GPU time by kernel of each engine's largest load.

    Yields:
        Of each job, ``tokens_per_s`` of each load, and ``kv_cache_tokens`` of the engine start.
    """
    found = capability.detect()
    source = provenance(config, seed, _run_to_continue(keep, found))
    for job in jobs:
        path = keep / f"{_name(job)}.jsonl" if keep else None
        made = _finished(path, job, source, found)
        if not made:
            made = _job_records(job, found, source, seed, repeats, profile)
            if path:
                write_records(path, made)
        yield made


def _run_to_continue(keep: Path | None, found: dict) -> str | None:
    """The ``run_id`` of the newest finished start on this machine."""
    paths = keep.glob("*.jsonl") if keep else ()
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        for record in read_records(path):
            if record.status == "ok" and _is_here(record, found):
                run = record.provenance["run_id"]
                print(f"serving: continues run {run} of {path.parent}", file=sys.stderr)
                return run
    return None


def _finished(path: Path | None, job: ServingJob, source: dict, found: dict) -> list[Measurement]:
    """Records of a job that need not run again; without a GPU whatever there is."""
    kept = read_records(path) if path and path.is_file() else []
    wanted = {name: source[name] for name in ("run_id", "seed")}
    if job.engine.startswith(OURS):
        wanted["commit"] = source["commit"]
    for record in kept:
        same = wanted.items() <= record.provenance.items() and _is_here(record, found)
        if record.status != "ok" or (found["gpu"] and not same):
            return []
    return kept


def _is_here(record: Measurement, found: dict) -> bool:
    here = found | {"device": found["gpu"]}
    return all(record.environment.get(name) == here[name] for name in SAME_MACHINE)


def _name(job: ServingJob) -> str:
    loads = [[load.input_tokens, load.output_tokens, load.requests] for load in job.loads]
    return case_id("serving", {"model": job.model, "cap": job.memory_cap, "of": loads}, job.engine)


def _job_records(
    job: ServingJob, found: dict, source: dict, seed: int, repeats: int, profile: bool
) -> list[Measurement]:
    def missing(reason: str) -> list[Measurement]:
        return [
            skipped(
                "serving", job.case(load), "tokens_per_s", "tokens/s", job.engine, reason,
                environment=environment(), provenance=source,
            )
            for load in job.loads
        ]  # fmt: skip

    if not found["gpu"]:
        return missing(f"{found['gpu_missing']}; {hints.GPU}")
    print(f"serving: {job.engine}, {job.model}, {len(job.loads)} loads", file=sys.stderr)
    try:
        response = _server(job.engine)(job, seed, repeats, profile, found["gpu_memory_bytes"] / 1e9)
    except Unavailable as reason:
        return missing(str(reason))
    return [
        *(_load_record(job, *pair, response, source) for pair in _pairs(job, response)),
        _cache_record(job, response, source),
    ]


def _server(engine: str) -> Callable:
    if engine.startswith("vllm-"):
        return serve_with_vllm
    if engine.startswith("trtllm-"):
        return trtllm.serve
    return _qserve


def _qserve(*_: object) -> dict:
    raise Unavailable(f"QServe is not here; {hints.QSERVE}")


def _pairs(job: ServingJob, response: dict):
    return zip(job.loads, response["results"], strict=True)


def _load_record(
    job: ServingJob, load: Load, result: dict, response: dict, source: dict
) -> Measurement:
    common = {
        "kind": "serving",
        "case": job.case(load),
        "metric": "tokens_per_s",
        "unit": "tokens/s",
        "backend": job.engine,
        "environment": _environment(response),
        "provenance": source,
    }
    if "error" in result:
        return Measurement(**common, status="failed", reason=str(result["error"]))
    method = METHOD | {
        "served": result["served"],
        "seconds": result["seconds"],
        "weights": WEIGHTS.get(job.engine.split("-")[0]),
        "engine": response["engine"],
        "gpu": result.get("gpu"),
        "kernels": response.get("kernels"),
    }
    samples = [result["generated"] / seconds for seconds in result["seconds"]]
    return Measurement(**common, samples=samples, method=method)


def _cache_record(job: ServingJob, response: dict, source: dict) -> Measurement:
    """Tokens that the engine's KV cache holds."""
    fields = {
        "kind": "serving",
        "case": {"model": job.model, "memory_cap": job.memory_cap},
        "metric": "kv_cache_tokens",
        "unit": "1",
        "backend": job.engine,
        "environment": _environment(response),
        "provenance": source,
    }
    tokens = response["engine"].get("kv_cache_tokens")
    if not tokens:
        reason = "the engine does not say how many tokens its KV cache holds"
        return Measurement(**fields, status="skipped", reason=reason)
    return Measurement(**fields, samples=[float(tokens)], method={"engine": response["engine"]})


def _environment(response: dict) -> dict:
    found = capability.detect()
    return environment() | {
        "device": response["device"],
        "driver": found["driver"],
        "engines": found["engines"] | {"worker": response["versions"]},
    }
