# SPDX-License-Identifier: Apache-2.0
"""Throughputs that somebody else measured: imported from a table, drawn as published."""

import csv
from pathlib import Path

from comet.errors import UserError
from comet.measurements import Measurement, environment, provenance
from comet.speed.serving.cases import ENGINES, Load

COLUMNS = ("model", "engine", "input_tokens", "output_tokens", "requests", "tokens_per_s", "source")


def recorded(path: Path, config: dict, seed: int) -> list[Measurement]:
    """Records of a CSV file with the columns ``COLUMNS``; ``source`` says where a number is from.

    Raises:
        UserError: a column is missing, or a row that is none; the message names file and line.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or [])]:
            raise UserError(f"{path} lacks the column {missing[0]}; it needs {', '.join(COLUMNS)}")
        source = provenance(config, seed)
        return [_record(path, reader.line_num, row, source) for row in reader]


def _record(path: Path, line: int, row: dict, source: dict) -> Measurement:
    try:
        load = Load(*(int(row[name]) for name in COLUMNS[2:5]))
        value = float(row["tokens_per_s"])
        if value <= 0 or row["engine"] not in ENGINES or not row["source"].strip():
            raise ValueError(f"engine {row['engine']}, {value} tokens/s, source {row['source']!r}")
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}:{line} is not a recorded throughput: {error}") from None
    return Measurement(
        "serving",
        load.as_case(row["model"], None),
        "tokens_per_s",
        "tokens/s",
        row["engine"],
        [value],
        method={"source": row["source"], "what": "measured by others, not by this harness"},
        environment=environment(),
        provenance=source,
        origin="published",
    )
