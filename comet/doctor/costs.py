# SPDX-License-Identifier: Apache-2.0
"""Disk, memory and time of a target as the manual has them."""

import csv
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("costs.csv")


@dataclass(frozen=True)
class Cost:
    """One row of the table; None where nothing is known.

    Attributes:
        config, target, machine: what was run, and where.
        download_gb, disk_gb, memory_gb: sizes in GB.
        minutes: of wall time.
        note: what the numbers include.
    """

    config: str
    target: str
    machine: str
    download_gb: float | None
    disk_gb: float | None
    memory_gb: float | None
    minutes: float | None
    note: str


def cost_table() -> list[Cost]:
    """The rows of ``costs.csv``."""
    sizes = ("download_gb", "disk_gb", "memory_gb", "minutes")
    with open(TABLE, newline="", encoding="utf-8") as stream:
        return [
            Cost(**row | {name: float(row[name]) if row[name] else None for name in sizes})
            for row in csv.DictReader(stream)
        ]


def cost_of(target: str, configs: list[str]) -> Cost | None:
    """The row of a target; None under a configuration of which nothing is known.

    Args:
        target: its name; ``smoke`` is all of its configuration.
        configs: file names, the last one laid over the others.
    """
    asked = ((configs or ["config.yaml"])[-1], "all" if target == "smoke" else target)
    return next((row for row in cost_table() if (row.config, row.target) == asked), None)


def manual_row(cost: Cost) -> str:
    """The row of the table in the manual, ``config/README.md``."""
    sizes = (cost.download_gb, cost.disk_gb, cost.memory_gb)
    shown = ["" if size is None else f"{size:g} GB" for size in sizes]
    time = "" if cost.minutes is None else f"{cost.minutes:g} minutes, {cost.note}"
    return f"| `{cost.config}` | {cost.machine} | {' | '.join(shown)} | {time} |".replace("  ", " ")
