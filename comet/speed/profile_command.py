# SPDX-License-Identifier: Apache-2.0
"""``comet profile``: how well kernels use the GPU, outside the workflow."""

import argparse
from pathlib import Path

from comet.speed.lease_command import add_lease_options, command_gpu

M = (16, 256, 2048)
LAYERS = ("gate_up",)
LIBRARY = Path("build/kernels/libcomet_kernels.so")
COST = (
    "All cases run under one start of Nsight Compute (about 15 s); then each costs about 0.3 s and "
    "the readings of NVML. The default, 6 cases and 10 backends, takes about 90 s of one H200."
)


def add_profile(commands: argparse._SubParsersAction) -> None:
    """Add ``profile`` with its sub-commands to the ``comet`` command."""
    text = "Hardware counters and NVML readings of kernels, or why there are none."
    profile = commands.add_parser("profile", help=text, description=text)
    kinds = profile.add_subparsers(required=True, metavar="WHAT")
    parser = kinds.add_parser("gemm", help="linear layers", description=f"{text} {COST}")
    parser.set_defaults(run=_gemm)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        default=["reference"],
        help="of resources/paper/model_shapes.csv (default: reference, the six reference layers)",
    )
    parser.add_argument("--m", type=int, nargs="+", default=list(M), help="batch sizes")
    parser.add_argument(
        "--layers", nargs="*", default=list(LAYERS), help="layers to keep; none named: all"
    )
    parser.add_argument("--backends", nargs="+", help="default: those of comet bench reference")
    parser.add_argument("--repeats", type=int, default=2, help="runs under the counters")
    parser.add_argument(
        "--watch-seconds", type=float, default=0.5, help="NVML readings of a kernel; 0: none"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the operands (default: 0)")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="run folder, gets profile.jsonl (default: results/local-<gpu>)",
    )
    add_lease_options(parser)


def _gemm(options: argparse.Namespace) -> None:
    from comet.measurements import write_records
    from comet.speed import capability
    from comet.speed.cases import REFERENCE_BACKENDS
    from comet.speed.profile import ProfileOptions, profile_cases, profile_records

    backends = options.backends or list(REFERENCE_BACKENDS)
    shown = ("models", "m", "layers", "repeats", "watch_seconds")
    config = {"profile": {name: getattr(options, name) for name in shown} | {"backends": backends}}
    cases = profile_cases(options.models, options.m, options.layers)
    with command_gpu(options, "comet profile gemm", timed=True, optional=True):
        records = profile_records(
            cases,
            backends,
            options.library,
            config,
            options.seed,
            ProfileOptions(options.repeats, options.watch_seconds),
        )
    out = options.out or Path("results") / f"local-{capability.slug(capability.detect()['gpu'])}"
    write_records(out / "profile.jsonl", records)
    print(out / "profile.jsonl")
