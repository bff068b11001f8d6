# SPDX-License-Identifier: Apache-2.0
"""Measured records, grouped for a figure: which run is shown, where, and what is missing."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from comet.figures.spec import FigureInputs

GEMM = ("model", "layer", "m", "n", "k")
SERVING = ("model", "input_tokens", "output_tokens", "memory_cap")


@dataclass(frozen=True)
class Shown:
    """The records that a figure shows.

    Attributes:
        records: records with status ok, of this run or else of the reference runs.
        missing: one line for each different reason of a skipped or failed record of this run.
        from_reference: whether the records are those of the reference runs.
    """

    records: list[dict]
    missing: list[str]
    from_reference: bool = False

    @property
    def device(self) -> str | None:
        """Device names for the legend, None where nothing is shown."""
        return self.where(self.records)

    def where(self, records: Iterable[dict]) -> str | None:
        """Device names of some of the records."""
        names = {str(r["environment"].get("device", "unknown device")) for r in records}
        suffix = ", reference run" if self.from_reference else ""
        return f"{', '.join(sorted(names))}{suffix}" if names else None


def show(inputs: FigureInputs, kind: str, wanted: Callable[[dict], bool]) -> Shown:
    """Choose what is shown: this run where it measured anything, else the reference runs."""
    own = [r for r in inputs.records if r["kind"] == kind and wanted(r)]
    missing = dict.fromkeys(
        f"not measured: {r['backend']}: {r['reason']}" for r in own if r["status"] != "ok"
    )
    records = [r for r in own if r["status"] == "ok"]
    from_reference = not records
    if from_reference:
        records = [
            r for r in inputs.reference if r["kind"] == kind and wanted(r) and r["status"] == "ok"
        ]
    return Shown(records, list(missing), from_reference)


def case_key(record: dict, *on: str) -> tuple:
    """The named parts of the case: equal for records that may be compared."""
    return tuple(json.dumps(record["case"].get(name)) for name in on)


def run_id(record: dict) -> str | None:
    """The identifier shared by everything measured side by side."""
    return record["provenance"].get("run_id")


def ratios(
    records: list[dict],
    is_baseline: Callable[[dict], bool],
    on: tuple[str, ...],
    higher_is_better: bool = False,
) -> list[tuple[dict, float]]:
    """Each record with its speed-up over the baseline of the same case, metric and run.

    ``on`` names the keys of the case that have to agree. A record without a baseline in the same
    run is left out: numbers of different runs are not compared.
    """

    def key(record: dict) -> tuple:
        return case_key(record, *on), record["metric"], run_id(record)

    base = {key(r): r["median"] for r in records if is_baseline(r)}
    pairs = []
    for record in records:
        reference = base.get(key(record))
        if reference and record["median"] and not is_baseline(record):
            ratio = record["median"] / reference
            pairs.append((record, ratio if higher_is_better else 1 / ratio))
    return pairs
