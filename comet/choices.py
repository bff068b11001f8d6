# SPDX-License-Identifier: Apache-2.0
"""What the options that the paper leaves open are worth: variants of FMPQ beside its default."""


def choice_rows(choices: list[dict], records: list[dict]) -> list[dict]:
    """Rows of the report's table.

    Args:
        choices: accuracy records whose case names a ``choice``; the configuration in their
            provenance says what the choice changes.
        records: other accuracy records; the one of the same case without a choice is the default.

    Returns:
        One row a choice with ``Choice``, ``Options``, ``Perplexity`` and ``Against the default``
        (relative change, lower is better), the best first; empty without choices.
    """
    rows = [_row(choice, records) for choice in choices if choice["status"] == "ok"]
    return sorted(rows, key=lambda row: float(row["Perplexity"]))


def _row(choice: dict, records: list[dict]) -> dict:
    name = choice["case"]["choice"]
    options = choice["provenance"]["config"]["choices"][name]
    default = _default(choice, records)
    change = f"{choice['median'] / default - 1:+.1%}" if default else "not measured"
    return {
        "Choice": name,
        "Options": ", ".join(f"{key} = {value}" for key, value in options.items()),
        "Perplexity": f"{choice['median']:.2f}",
        "Against the default": change,
    }


def _default(choice: dict, records: list[dict]) -> float | None:
    case = {key: value for key, value in choice["case"].items() if key != "choice"}
    same = ("backend", "metric")
    for record in records:
        if record["case"] == case and all(record[key] == choice[key] for key in same):
            return record["median"]
    return None
