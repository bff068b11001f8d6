# SPDX-License-Identifier: Apache-2.0
"""The published tables, read as they are."""

import csv
from pathlib import Path

from comet.errors import UserError


def rows(paper: Path, name: str) -> list[dict[str, str]]:
    """The rows of one published table.

    Raises:
        UserError: the table is not there.
    """
    path = Path(paper) / name
    if not path.is_file():
        raise UserError(f"{path} is missing; restore resources/paper from the repository")
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def number(text: str) -> float | None:
    """The number in a cell, or None for an empty cell."""
    return float(text) if text else None


def unique(values) -> list:
    """The values without repeats, in their first order."""
    return list(dict.fromkeys(values))
