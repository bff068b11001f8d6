# SPDX-License-Identifier: Apache-2.0
"""``comet bench attention``: times of decode attention, outside the workflow."""

import argparse
import sys

from comet.speed.bench_options import add_kernel_options, run_folder
from comet.speed.lease_command import command_gpu

COST = (
    "A backend takes about half a second a case: all models (44 cases, 5 backends) about 110 s of "
    "one H200. Every finished case is kept under --out and not run again on the same machine with "
    "the same kernel library."
)


def add_attention(kinds: argparse._SubParsersAction) -> None:
    """Add ``attention`` to the sub-commands of ``comet bench``."""
    what = "Decode attention over a paged KV cache."
    parser = kinds.add_parser("attention", help=what, description=f"{what} {COST}")
    parser.set_defaults(run=_attention)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="llama2-7b, llama3-8b, llama3-70b, qwen2-72b (default: all)",
    )
    add_kernel_options(parser, "attention", "all")


def _attention(options: argparse.Namespace) -> None:
    from comet.measurements import gather, read_records, write_records
    from comet.speed.attention_bars import sentences, verdict
    from comet.speed.attention_bench import attention_records, estimated_seconds, memory_records
    from comet.speed.attention_cases import MODELS, attention_jobs
    from comet.speed.cases import shard_of

    models = options.models or list(MODELS)
    jobs = [job for model in models for job in attention_jobs(model, options.backends)]
    jobs = shard_of(jobs, options.shard)
    if options.list:
        for job in jobs:
            print("{model} batch {batch} context {context}:".format(**job.case), *job.backends)
        print(f"{len(jobs)} cases, about {estimated_seconds(jobs):.0f} s", file=sys.stderr)
        return
    out = run_folder(options)
    chosen = {name: getattr(options, name) for name in ("models", "backends", "shard")}
    config = {"attention": chosen}
    cases = out / "cases" / "attention"
    with command_gpu(options, "comet bench attention", timed=True, optional=True):
        records = attention_records(jobs, options.library, config, options.seed, cases)
    if cases.is_dir():
        write_records(cases / "memory.jsonl", memory_records(list(MODELS), config, options.seed))
        gather(sorted(cases.rglob("*.jsonl")), out / "attention.jsonl")
    else:
        records += memory_records(list(MODELS), config, options.seed)
        write_records(out / "attention.jsonl", records)
    print(out / "attention.jsonl")
    found = verdict([record.as_dict() for record in read_records(out / "attention.jsonl")])
    if found.rows:
        print("\n".join(sentences(found, "this run")))
