# SPDX-License-Identifier: Apache-2.0
"""How much faster KV4 attention is than 16-bit flash decoding, and which bar that reaches."""

import math
import statistics
from dataclasses import dataclass, field

from comet.speed.attention_cases import MODELS, REFERENCE, SIXTEEN_BIT, attention_cases

OURS = "comet-kv4"
BARS = {"must": 2.0, "good": 2.6, "goal": 3.1}
CEILING = 3.65  # traffic of 16-bit over KV4
LEAST_BYTES = 32e6  # below it, launch and merge decide
APPEND_CASE = {"model": "llama3-8b", "batch": 64, "context": 4096}
APPEND_LIMIT = 3.0  # percent of decode


@dataclass(frozen=True)
class Row:
    """One case: KV4 against the faster 16-bit kernel of the same run."""

    case: dict
    ours: float
    baseline: float
    baseline_name: str

    @property
    def speedup(self) -> float:
        """How many times faster."""
        return self.baseline / self.ours


@dataclass(frozen=True)
class Verdict:
    """The geometric mean over the rows that count.

    Attributes:
        rows: the rows that were measured.
        missing: names of required rows without a measurement, with the reason.
        mean: geometric mean of the speed-ups over ``rows``; None without any.
        bar: name of the highest bar that the mean reaches, ``none``, or ``incomplete``.
        append_share: percent of decode that the append takes in ``APPEND_CASE``, or None.
    """

    rows: list[Row]
    missing: list[str] = field(default_factory=list)
    mean: float | None = None
    bar: str = "incomplete"
    append_share: float | None = None


def speedups(records: list[dict]) -> list[Row]:
    """KV4 against the faster of the 16-bit kernels, for each case and run that has them all.

    Args:
        records: of any kind, as dictionaries.
    """
    times: dict[tuple, dict[str, dict]] = {}
    for record in records:
        if record["kind"] == "attention" and record["metric"] == "time" and _is_measured(record):
            times.setdefault(_key(record), {})[record["backend"]] = record
    rows = []
    for found in times.values():
        if OURS in found and all(name in found for name in SIXTEEN_BIT):
            name = min(SIXTEEN_BIT, key=lambda name: found[name]["median"])
            ours = found[OURS]
            rows.append(Row(ours["case"], ours["median"], found[name]["median"], name))
    return rows


def verdict(records: list[dict]) -> Verdict:
    """The speed-up over the rows of the reference with at least ``LEAST_BYTES`` of 16-bit KV and
    whole pages."""
    newest = {_name(row.case): row for row in speedups(records)}
    required = [
        case
        for model in REFERENCE
        for case in attention_cases(model)
        if case["kv_bytes_16bit"] >= LEAST_BYTES and case["context"] in MODELS[model].contexts
    ]
    rows = [newest[_name(case)] for case in required if _name(case) in newest]
    missing = [_name(case) for case in required if _name(case) not in newest]
    if not rows:
        return Verdict([], missing)
    mean = math.exp(statistics.fmean(math.log(row.speedup) for row in rows))
    reached = [name for name, limit in BARS.items() if mean >= limit]
    bar = "incomplete" if missing else (reached or ["none"])[-1]
    return Verdict(rows, missing, mean, bar, _append_share(records))


def sentences(found: Verdict, whose: str) -> list[str]:
    """What a verdict says, for people.

    Args:
        found: with at least one row.
        whose: ``this run`` or another name of where the rows come from.
    """
    limits = ", ".join(f"{name} {limit:.1f}" for name, limit in BARS.items())
    total = len(found.rows) + len(found.missing)
    said = [
        f"Geometric mean over {len(found.rows)} of {total} rows of {whose} (at least "
        f"{LEAST_BYTES / 1e6:.0f} MB of 16-bit KV each): {found.mean:.2f}. Bars: {limits}; ceiling "
        f"by traffic {CEILING:.2f}. Reached: {found.bar}."
    ]
    if found.missing:
        said.append(
            "Rows without a measurement of KV4 and of both 16-bit kernels in one run: "
            f"{'; '.join(found.missing)}."
        )
    where = "{model}, batch {batch}, context {context}".format(**APPEND_CASE)
    if found.append_share is None:
        return [*said, f"The append of a token was not measured for {where}."]
    return [
        *said,
        f"The append of a token takes {found.append_share:.2f} % of decode ({where}; mean of 64 "
        f"steps, one of which seals a page; limit {APPEND_LIMIT:.0f} %).",
    ]


def _append_share(records: list[dict]) -> float | None:
    shares = [
        record["median"]
        for record in records
        if record["metric"] == "append_share"
        and _is_measured(record)
        and APPEND_CASE.items() <= record["case"].items()
    ]
    return shares[-1] if shares else None


def _is_measured(record: dict) -> bool:
    return record["status"] == "ok" and record["origin"] == "measured"


def _name(case: dict) -> str:
    return "{model}, batch {batch}, context {context}".format(**case)


def _key(record: dict) -> tuple:
    return _name(record["case"]), record["provenance"].get("run_id")
