# SPDX-License-Identifier: Apache-2.0
"""The table of what the options that the paper leaves open are worth."""


def choice_rows(records: list[dict]) -> list[dict[str, str]]:
    """Rows of the table, in the order in which the choices were measured.

    Args:
        records: accuracy records whose case names under ``options`` what differs from the default;
            the one that names nothing is the default.

    Returns:
        One row a record with ``Model``, ``Choice``, ``Perplexity`` and ``Against the default``
        (relative change, lower is better).
    """
    measured = [record for record in records if record["status"] == "ok"]
    defaults = {_place(r): r["median"] for r in measured if not r["case"]["options"]}
    return [_row(record, defaults.get(_place(record))) for record in measured]


def _place(record: dict) -> tuple:
    """What two records must share to be compared."""
    case = record["case"]
    return (case["model"], case["dataset"], case["windows"], record["metric"])


def _row(record: dict, default: float | None) -> dict[str, str]:
    options = record["case"]["options"]
    choice = ", ".join(f"{key} = {value}" for key, value in options.items())
    return {
        "Model": record["case"]["model"],
        "Choice": choice or "default",
        "Perplexity": f"{record['median']:.2f}",
        "Against the default": f"{record['median'] / default - 1:+.1%}" if default else "unknown",
    }
