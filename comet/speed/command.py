# SPDX-License-Identifier: Apache-2.0
"""``comet bench``: times of kernels, outside the workflow."""

import argparse
import sys
from pathlib import Path

from comet.measurements import gather, read_records, write_records
from comet.speed.attention_command import add_attention
from comet.speed.bench_options import add_kernel_options, run_folder
from comet.speed.cases import MODES, PAPER_M, SUITE_M, Job, jobs_of, shard_of
from comet.speed.lease_command import command_gpu
from comet.speed.serving.command import add_serving

COST = (
    "A backend takes about 0.3 s a case: the full reference suite (11 batches x 6 shapes x 10 "
    "backends, and the quantization metrics of COMET's) about 3 minutes of one H200, each batch "
    "22 s. Every finished case is kept under --out and not run again on the same machine with the "
    "same kernel library, so that a run that was killed goes on where it stopped."
)


def add_bench(commands: argparse._SubParsersAction) -> None:
    """Add ``bench`` with its sub-commands to the ``comet`` command."""
    text = "Time kernels on this GPU, or record why they cannot be timed."
    bench = commands.add_parser("bench", help=text, description=text)
    kinds = bench.add_subparsers(required=True, metavar="WHAT")
    _add_gemm(kinds)
    _add_bars(kinds)
    for suite, what in (
        ("reference", "The six linear layers on which rival kernels are compared."),
        ("modes", f"The scales of W4Ax on the reference layers: {', '.join(MODES)}."),
        ("ablations", "The kernels without one of their techniques; needs comet build --variants."),
    ):
        _add_suite(kinds, suite, what)
    add_attention(kinds)
    add_serving(kinds)


def _parser(kinds, name: str, what: str, run) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=what, description=f"{what} {COST}")
    parser.set_defaults(run=run)
    return parser


def _add_gemm(kinds) -> None:
    what = "The linear layers of models of resources/paper/model_shapes.csv."
    parser = _parser(kinds, "gemm", what, _gemm)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="such as LLaMA-3-8B")
    _add_shared(parser, PAPER_M)


def _add_bars(kinds) -> None:
    what = "Geometric means of a run over the reference layers, against their bars."
    parser = kinds.add_parser("bars", help=what, description=what)
    parser.add_argument("records", type=Path, nargs="+", help="such as results/h200/gemm.jsonl")
    parser.set_defaults(run=_bars)


def _bars(options: argparse.Namespace) -> None:
    from comet.speed.gemm_bars import as_markdown, batch_rows

    records = [record.as_dict() for path in options.records for record in read_records(path)]
    print(as_markdown(batch_rows(records)))


def _add_suite(kinds, suite: str, what: str) -> None:
    parser = _parser(kinds, suite, what, _suite)
    parser.set_defaults(suite=suite)
    _add_shared(parser, SUITE_M[suite])


def _add_shared(parser: argparse.ArgumentParser, m: tuple[int, ...]) -> None:
    shown = " ".join(map(str, m))
    parser.add_argument("--m", type=int, nargs="+", help=f"batch sizes (default: {shown})")
    add_kernel_options(parser, "gemm", "those of the suite")


def _gemm(options: argparse.Namespace) -> None:
    jobs = [job for name in options.models for job in jobs_of(name, options.m, options.backends)]
    _run("gemm", jobs, options)


def _suite(options: argparse.Namespace) -> None:
    _run(options.suite, jobs_of(options.suite, options.m, options.backends), options)


def _run(suite: str, jobs: list[Job], options: argparse.Namespace) -> None:
    from comet.speed.bench import estimated_seconds, gemm_records

    jobs = shard_of(jobs, options.shard)
    if options.list:
        for job in jobs:
            print("{model} {layer} {n}x{k} m={m}:".format(**job.case), *job.backends)
        print(f"{len(jobs)} cases, about {estimated_seconds(jobs):.0f} s", file=sys.stderr)
        return
    out = run_folder(options)
    cases = out / "cases" / "gemm"
    chosen = {name: getattr(options, name) for name in ("m", "backends", "shard")}
    config = {"suite": suite, **chosen}
    with command_gpu(options, f"comet bench {suite}", timed=True, optional=True):
        records = gemm_records(jobs, options.library, config, options.seed, cases / suite)
    path = out / "gemm.jsonl"
    measured = sorted(cases.rglob("*.jsonl"))
    if measured:
        gather(measured, path)
    else:
        write_records(path, records)
    print(path)
