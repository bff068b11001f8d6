# SPDX-License-Identifier: Apache-2.0
"""Build variants of the W4Ax kernels that leave one technique out (paper, Fig. 13).

Each is a library of its own, beside the default one: ``variants/<name>/libcomet_kernels.so``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comet.errors import UserError
from comet.kernels.library import ENVIRONMENT, library_path

FULL = "full"
# Macros of comet/sm80/instance.cuh and comet/sm90/instance.cuh.
VARIANTS = {
    "without-pipeline": {"COMET_W4AX_SM80_STAGES": 1, "COMET_W4AX_SM90_STAGES": 1},
    "without-interleaving": {"COMET_W4AX_SM80_INTERLEAVED": 0, "COMET_W4AX_SM90_INTERLEAVED": 0},
    "naive-conversion": {
        "COMET_W4AX_SM80_FAST_CONVERSION": 0,
        "COMET_W4AX_SM90_FAST_CONVERSION": 0,
    },
}


def variant_path(name: str) -> Path:
    """The library of a variant, beside the one in use.

    Raises:
        UserError: there is no such variant.
    """
    if name == FULL:
        return library_path()
    if name not in VARIANTS:
        known = ", ".join((FULL, *VARIANTS))
        raise UserError(f"kernel variant {name!r} is unknown; use one of {known}")
    default = library_path()
    return default.parent / "variants" / name / default.name


@contextmanager
def using(library: Path) -> Iterator[None]:
    """Let operators call another library while the block runs."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = str(library)
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before
