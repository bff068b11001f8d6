# SPDX-License-Identifier: Apache-2.0
"""Models of the table of shapes, read without torch: this runs whenever a run is planned."""

import csv
from functools import cache

from comet.measurements import REPOSITORY

SHAPES = REPOSITORY / "resources" / "paper" / "model_shapes.csv"


@cache
def shape_layers() -> dict[str, int]:
    """Number of layers of each model of the table of shapes."""
    with open(SHAPES, newline="", encoding="utf-8") as stream:
        return {row["model"]: int(row["cfg_layers"]) for row in csv.DictReader(stream)}
