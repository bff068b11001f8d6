# SPDX-License-Identifier: Apache-2.0
"""How a workflow job speaks: everything into its log, bad input as one line, bars on the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comet.errors import UserError


@contextmanager
def logged(path: Path | str) -> Iterator[None]:
    """Send stdout and stderr to a log file for the length of the block.

    A ``UserError`` becomes one line in the log and on the terminal and ends the process with
    status 1. Any other exception leaves its traceback in the log and goes on. Progress bars that
    write to ``sys.__stderr__`` still reach the terminal.
    """
    with open(path, "w", encoding="utf-8", buffering=1) as log:
        standard = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = log
        try:
            yield
        except UserError as error:
            for stream in (log, sys.__stderr__):
                print(f"comet: {error}", file=stream)
            sys.exit(1)
        finally:
            sys.stdout, sys.stderr = standard
