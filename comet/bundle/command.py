# SPDX-License-Identifier: Apache-2.0
"""``comet bundle``: pinned wheels for machines without a network."""

import argparse
import platform
from pathlib import Path

TEXT = "Collect pinned wheels, for this or another machine, in parts to carry to nodes offline."


def add_bundle(commands: argparse._SubParsersAction) -> None:
    """Add ``bundle`` to the ``comet`` command."""
    parser = commands.add_parser("bundle", help=TEXT, description=TEXT)
    parser.set_defaults(run=_bundle, command="comet bundle")
    here = ".".join(platform.python_version_tuple()[:2])
    parser.add_argument("--out", type=Path, default=Path("bundle"), help="folder (default: bundle)")
    parser.add_argument(
        "--requirements",
        type=Path,
        default=Path("requirements.txt"),
        metavar="FILE",
        help="exact pins (default: requirements.txt)",
    )
    parser.add_argument(
        "--python", default=here, help=f"Python of the other machine (default: {here})"
    )
    parser.add_argument(
        "--glibc", default="2.28", help="its C library, from ldd --version (default: 2.28)"
    )
    parser.add_argument(
        "--machine", default="x86_64", help="its processor, from uname -m (default: x86_64)"
    )
    parser.add_argument(
        "--part-size", type=int, default=2000, metavar="MB", help="largest part (default: 2000)"
    )


def _bundle(options: argparse.Namespace) -> None:
    from comet.bundle import bundle
    from comet.bundle.target import Target

    target = Target(options.python, options.glibc, options.machine)
    made = bundle(options.requirements, options.out, target, options.part_size * 10**6)
    size = made["bytes"] / 10**9
    print(f"{made['wheels']} wheels in {made['parts']} parts: {options.out}, {size:.2f} GB")
    print(f"on the other machine: sh {options.out.name}/install.sh .venv")
