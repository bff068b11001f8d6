# SPDX-License-Identifier: Apache-2.0
"""Figures on disk: equal input gives equal bytes."""

from pathlib import Path

from matplotlib.figure import Figure

from comet.figures import style
from comet.files import atomic_path

METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def save(figure: Figure, out_stem: Path | str) -> list[Path]:
    """Write ``<out_stem>.svg`` and ``<out_stem>.png`` atomically, without dates and random ids.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    written = []
    with style.context():
        for suffix, metadata in METADATA.items():
            path = Path(f"{out_stem}.{suffix}")
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=suffix, metadata=metadata)
            written.append(path)
    return written
