# SPDX-License-Identifier: Apache-2.0
"""``comet bench serving``: end-to-end throughput of engines, outside the workflow."""

import argparse
import signal
import sys
from pathlib import Path

from comet.measurements import write_records
from comet.speed.bench_options import add_run_options, run_folder
from comet.speed.lease_command import command_gpu
from comet.speed.serving.cases import ENGINES, MOST, ServingJob, serving_jobs

WHAT = (
    "Serve requests with each engine and write tokens per second. An engine is started once a "
    "model (about a minute) and serves all its loads. Every finished start is kept under --out: a "
    "run that was killed goes on under its run_id with the starts that are missing."
)
LOADS = ("1024/512/4", "1024/512/16", "1024/512/64", "1024/512/256", "1024/512/max", "128/128/256")


def add_serving(kinds: argparse._SubParsersAction) -> None:
    """Add ``serving`` to ``comet bench``."""
    parser = kinds.add_parser("serving", help=WHAT, description=WHAT)
    parser.set_defaults(run=_serving)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="such as LLaMA-3-8B")
    vllm = [name for name in ENGINES if name.startswith("vllm-")]
    parser.add_argument("--engines", nargs="+", default=vllm, help="default: vLLM's")
    parser.add_argument(
        "--loads", nargs="+", default=list(LOADS), help="input/output/requests, or max"
    )
    parser.add_argument("--memory-cap", type=float, metavar="GB", help="use no more of the GPU")
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="timed runs of each load, at least; short ones run again",
    )
    parser.add_argument(
        "--profile", action="store_true", help="also the GPU time by kernel of the largest load"
    )
    parser.add_argument("--recorded", type=Path, metavar="CSV", help="throughputs by others")
    add_run_options(parser, "serving", "engine start")


def _serving(options: argparse.Namespace) -> None:
    from comet.speed.cases import shard_of
    from comet.speed.serving.recorded import recorded
    from comet.speed.serving.records import serving_starts

    setting = {
        "models": options.models,
        "engines": options.engines,
        "loads": [_load(text) for text in options.loads],
        "memory_cap": options.memory_cap,
    }
    jobs = shard_of(serving_jobs([setting]), options.shard)
    if options.list:
        _list(jobs)
        return
    out = run_folder(options)
    # A profiled engine runs in another way: the two are never one run.
    name = "serving-profile" if options.profile else "serving"
    config = {"serving": setting, "repeats": options.repeats, "shard": options.shard}
    records = recorded(options.recorded, config, options.seed) if options.recorded else []
    # So that the engine ends with this program, and the GPU is free again.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("comet bench serving was stopped"))
    with command_gpu(options, "comet bench serving", timed=True, optional=True):
        for made in serving_starts(
            jobs,
            config,
            options.seed,
            options.repeats,
            keep=out / "cases" / name,
            profile=options.profile,
        ):
            records += made
            write_records(out / f"{name}.jsonl", records)
    print(out / f"{name}.jsonl")


def _load(text: str) -> list:
    return [int(part) if part.isdigit() else part for part in text.split("/")]


def _list(jobs: list[ServingJob]) -> None:
    for job in jobs:
        loads = (f"{load.input_tokens}/{load.output_tokens}/{load.requests}" for load in job.loads)
        print(job.engine, job.model, *loads)
    print(f"{len(jobs)} engine starts; {MOST}: as many requests as fit", file=sys.stderr)
