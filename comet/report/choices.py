# SPDX-License-Identifier: Apache-2.0
"""The table of what the options that the paper leaves open are worth."""

from comet.fmpq.options import FMPQOptions


def choice_rows(records: list[dict]) -> list[dict[str, str]]:
    """Rows of the table, in the order in which the choices were measured.

    Args:
        records: accuracy records whose case names under ``options`` what differs from the base of
            the comparison; the one that names nothing is the base.

    Returns:
        One row a record with ``Model``, ``Text``, ``Choice``, ``Perplexity`` and
        ``Against the base`` (relative change, lower is better).
    """
    measured = [record for record in records if record["status"] == "ok"]
    bases = {_place(r): r["median"] for r in measured if not r["case"]["options"]}
    return [_row(record, bases.get(_place(record))) for record in measured]


def _place(record: dict) -> tuple:
    """What two records must share to be compared."""
    case = record["case"]
    return (case["model"], case["dataset"], case["windows"], record["metric"])


def _base_name(record: dict) -> str:
    """The base, by what its options change in the defaults of the method."""
    defaults = FMPQOptions().as_dict()
    options = record.get("method", {}).get("options", {})
    changed = {key: value for key, value in options.items() if defaults.get(key) != value}
    return f"base: {_listed(changed)}" if changed else "base: the defaults"


def _listed(options: dict) -> str:
    return ", ".join(f"{key} = {value}" for key, value in options.items())


def _row(record: dict, base: float | None) -> dict[str, str]:
    case = record["case"]
    return {
        "Model": case["model"],
        "Text": f"{case['dataset']}, windows {case['windows']}",
        "Choice": _listed(case["options"]) or _base_name(record),
        "Perplexity": f"{record['median']:.2f}",
        "Against the base": f"{record['median'] / base - 1:+.1%}" if base else "unknown",
    }
