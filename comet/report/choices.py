# SPDX-License-Identifier: Apache-2.0
"""The table of what the options that the paper leaves open are worth."""

from comet.fmpq.options import FMPQOptions

# What an option costs a kernel; the others change weights or the order of channels, not the work.
KERNEL_COSTS = {
    ("act_zero_point", True): "sm_90a: none; sm_80: one precomputed weight sum a block",
    ("act_hadamard", True): "7 additions a value where activations are quantized",
    ("act_scale", "token_block"): "a float multiply-add an accumulator and block",
    ("act_scale", "token"): "less: one scale a precision",
    ("weight_scale", "group_fp"): "a float multiply-add an accumulator and block",
    ("outlier_rule", "threshold"): "fewer INT8 blocks",
}


def choice_rows(records: list[dict]) -> list[dict[str, str]]:
    """Rows of the table, in the order in which the choices were measured.

    Args:
        records: accuracy records whose case names under ``options`` what differs from the base of
            the comparison; the one that names nothing is the base.

    Returns:
        One row a record with ``Model``, ``Text``, ``Choice``, ``Perplexity``, ``Against the base``
        (relative change, lower is better) and ``Cost in a kernel``, against the base too.
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


def _kernel_cost(options: dict) -> str:
    costs = [KERNEL_COSTS[item] for item in options.items() if item in KERNEL_COSTS]
    if "int8_share" in options:
        costs.append("other share of INT8 blocks, twice the time of INT4 on sm_80")
    return "; ".join(costs) or "none"


def _row(record: dict, base: float | None) -> dict[str, str]:
    case = record["case"]
    return {
        "Model": case["model"],
        "Text": f"{case['dataset']}, windows {case['windows']}",
        "Choice": _listed(case["options"]) or _base_name(record),
        "Perplexity": f"{record['median']:.2f}",
        "Against the base": f"{record['median'] / base - 1:+.1%}" if base else "unknown",
        "Cost in a kernel": _kernel_cost(case["options"]),
    }
