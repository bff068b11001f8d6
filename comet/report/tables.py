# SPDX-License-Identifier: Apache-2.0
"""Records as rows of text for the report's tables."""

from collections import Counter

COLUMNS = (
    "mark",
    "where",
    "device",
    "model",
    "data",
    "case",
    "backend",
    "metric",
    "median",
    "unit",
    "samples",
    "status",
    "reason",
)
NAMED = ("model", "dataset")


def record_rows(records: list[dict], where: str, labels: dict[str, str]) -> list[dict]:
    """One row of text for each record; ``where`` says whose run it is."""
    return [_row(record, where, labels) for record in records]


def _row(record: dict, where: str, labels: dict[str, str]) -> dict:
    case = record["case"]
    rest = {k: v for k, v in case.items() if k not in NAMED and v is not None}
    return {
        "mark": record["origin"],
        "where": where,
        "device": record["environment"].get("device", ""),
        "model": _labelled(case.get("model"), labels),
        "data": _labelled(case.get("dataset"), labels),
        "case": ", ".join(f"{key} {value}" for key, value in rest.items()),
        "backend": record["backend"],
        "metric": record["metric"],
        "median": "" if record["median"] is None else f"{record['median']:.6g}",
        "unit": record["unit"],
        "samples": len(record["samples"]) or "",
        "status": record["status"],
        "reason": record["reason"] or "",
    }


def _labelled(name: str | None, labels: dict[str, str]) -> str:
    if name is None:
        return ""
    return f"{labels[name]} ({name})" if name in labels else name


def skipped_rows(records: list[dict], labels: dict[str, str]) -> list[dict]:
    """What was skipped or failed, and why, equal reasons counted."""
    counts = Counter(
        (
            record["kind"],
            record["backend"],
            _labelled(record["case"].get("model"), labels),
            record["status"],
            record["reason"],
        )
        for record in records
        if record["status"] != "ok"
    )
    names = ("kind", "backend", "model", "status", "reason")
    return [dict(zip(names, key, strict=True), records=n) for key, n in sorted(counts.items())]


def devices(records: list[dict]) -> list[str]:
    """Names of the devices behind measured numbers."""
    return sorted(
        {
            str(record["environment"].get("device", "unknown"))
            for record in records
            if record["status"] == "ok" and record["origin"] == "measured"
        }
    )


def origins(records: list[dict]) -> dict[str, int]:
    """Count of numbers by origin."""
    return dict(Counter(record["origin"] for record in records if record["status"] == "ok"))


def runs(records: list[dict]) -> list[dict]:
    """One row for each run behind the numbers: commit, seed, versions, first start."""
    found: dict[tuple, dict] = {}
    for record in records:
        made, env = record["provenance"], record["environment"]
        row = {
            "commit": _commit(made),
            "seed": made.get("seed", ""),
            "device": env.get("device", ""),
            "python": env.get("python", ""),
            "versions": ", ".join(f"{k} {v}" for k, v in env.get("versions", {}).items() if v),
        }
        start = made.get("start", "")
        row = found.setdefault(tuple(row.values()), row | {"first start": start, "records": 0})
        row["records"] += 1
        row["first start"] = min(row["first start"], start)
    return list(found.values())


def _commit(made: dict) -> str:
    commit = made.get("commit") or "unknown"
    return f"{commit} with local changes" if made.get("dirty") else commit
