# SPDX-License-Identifier: Apache-2.0
"""What the tuners of kernels share: their command line, on a GPU that is theirs alone."""

import argparse
from collections.abc import Callable

from comet.errors import UserError
from comet.speed.lease_command import add_lease_options, command_gpu


def run_tuner(
    parser: argparse.ArgumentParser,
    tune: Callable[[argparse.Namespace], None],
    arguments: list[str] | None = None,
) -> None:
    """Tune with the options of the command line, on a leased GPU.

    Args:
        parser: of the tuner; the options of the lease are added.
        tune: called with the options while the lease is held.
        arguments: instead of the command line's.

    Raises:
        SystemExit: there is no free GPU, which is told in one line.
    """
    add_lease_options(parser)
    options = parser.parse_args(arguments)
    try:
        with command_gpu(options, parser.prog, timed=True):
            tune(options)
    except UserError as error:
        parser.exit(1, f"comet: {error}\n")
