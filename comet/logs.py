# SPDX-License-Identifier: Apache-2.0
"""How a workflow job speaks: output into its log, bad input as one line, bars on the terminal."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod

from tqdm import tqdm

from comet.errors import UserError


@contextmanager
def logged(job) -> Iterator[None]:
    """Send stdout and stderr of a workflow job to its log for the length of the block.

    A ``UserError`` becomes one line in the log and on the terminal, any other exception a
    traceback in the log; both end the process with status 1. Progress bars go to the terminal
    where there is one. Records of the job name the command that makes its output, not the
    temporary script.

    Args:
        job: Snakemake's description of the job; ``log`` and ``output`` are used.
    """
    sys.argv = ["snakemake", str(job.output[0])]
    if sys.__stderr__.isatty():
        tqdm.__init__ = partialmethod(tqdm.__init__, file=sys.__stderr__)
    standard = sys.stdout, sys.stderr
    with open(job.log[0], "w", encoding="utf-8", buffering=1) as log:
        sys.stdout = sys.stderr = log
        try:
            yield
        except UserError as error:
            for stream in (log, sys.__stderr__):
                print(f"comet: {error}", file=stream)
            sys.exit(1)
        except Exception:
            traceback.print_exc(file=log)
            sys.exit(1)
        finally:
            sys.stdout, sys.stderr = standard
