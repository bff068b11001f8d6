# SPDX-License-Identifier: Apache-2.0
"""The options of a sub-command that takes a GPU, and the lease that they ask for."""

import argparse
from contextlib import AbstractContextManager

from comet.speed.lease import Lease, LeaseOptions, gpu_lease


def add_lease_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--busy-gpu`` and ``--gpu-wait``."""
    parser.add_argument(
        "--busy-gpu",
        choices=("refuse", "share"),
        help="whether to measure on a GPU that other programs use (default: refuse)",
    )
    parser.add_argument(
        "--gpu-wait",
        type=float,
        metavar="MINUTES",
        help="how long to wait for a GPU that other jobs have leased (default: 60)",
    )


def command_gpu(
    options: argparse.Namespace,
    job: str,
    timed: bool,
    optional: bool = False,
    settings: dict | None = None,
) -> AbstractContextManager[Lease | None]:
    """The lease of a sub-command.

    Args:
        options: of the command line; what is not given there is taken from ``settings``.
        job, timed, optional: as in ``comet.speed.lease.gpu_lease``.
        settings: section ``gpu`` of a configuration.

    Raises:
        UserError: as ``comet.speed.lease.gpu_lease``.
    """
    given = {"busy": options.busy_gpu, "wait_minutes": options.gpu_wait}
    chosen = {name: value for name, value in given.items() if value is not None}
    return gpu_lease(job, timed, LeaseOptions(**(settings or {}) | chosen), optional)
