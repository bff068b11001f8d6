# SPDX-License-Identifier: Apache-2.0
"""Options that all of ``comet bench`` has in common."""

import argparse
from pathlib import Path

from comet.speed import capability
from comet.speed.lease_command import add_lease_options

LIBRARY = Path("build/kernels/libcomet_kernels.so")


def add_run_options(parser: argparse.ArgumentParser, kind: str, unit: str = "case") -> None:
    """Which part runs, where its records go, and on which GPU.

    Args:
        parser: of one sub-command.
        kind: of its records, which names the files of a run.
        unit: what a shard counts.
    """
    parser.add_argument(
        "--shard", default="1/1", metavar="I/N", help=f"every N-th {unit} from I on"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the operands (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"run folder: cases/{kind}/ with a file for each {unit}, and {kind}.jsonl that joins "
        "them (default: results/local-<gpu>)",
    )
    parser.add_argument("--list", action="store_true", help="print what would run, and stop")
    add_lease_options(parser)


def add_kernel_options(parser: argparse.ArgumentParser, kind: str, backends: str) -> None:
    """``add_run_options``, the backends (``backends`` says the default) and the library."""
    parser.add_argument("--backends", nargs="+", help=f"default: {backends}")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    add_run_options(parser, kind)


def run_folder(options: argparse.Namespace) -> Path:
    """The folder of a run: ``--out``, or this machine's own."""
    if options.out:
        return options.out
    return Path("results") / f"local-{capability.slug(capability.detect()['gpu'])}"
