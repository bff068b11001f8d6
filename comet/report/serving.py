# SPDX-License-Identifier: Apache-2.0
"""The table of engines with and without COMET, and which bars are reached."""

from comet.speed.serving.bars import OURS, Row, rows, sentences


def serving_summary(records: list[dict], reference: list[dict]) -> dict:
    """Rows and sentences of the report; of this run where it served a load with COMET and a rival,
    else of the reference.

    Args:
        records, reference: measurements as dictionaries.

    Returns:
        ``rows`` (dictionaries of text, empty without a measurement) and ``sentences``.
    """
    here = bool(rows(records))
    shown = records if here else reference
    whose = "this run" if here else "the reference run"
    found = sorted(rows(shown), key=lambda row: _order(row.case))
    return {"rows": [_row(row) for row in found], "sentences": sentences(shown, whose)}


def _order(case: dict) -> tuple:
    """By model and setting, then few requests first."""
    most = case["requests"] == "max"
    setting = case["model"], case["memory_cap"] or 0, -case["input_tokens"]
    return *setting, most, 0 if most else case["requests"]


def _row(row: Row) -> dict[str, str]:
    case, w4a16 = row.case, row.over_w4a16
    cap = case["memory_cap"]
    return {
        "Model": case["model"] + ("" if cap is None else f", {cap:g} GB"),
        "Input/output": f"{case['input_tokens']}/{case['output_tokens']}",
        "Requests": str(case["requests"]),
        f"{OURS}, tokens/s": f"{row.ours:,.0f}",
        "Best rival": row.best,
        "its tokens/s": f"{row.rivals[row.best]:,.0f}",
        "Over the best rival": f"{row.speedup:.3f}",
        "Over W4A16": "-" if w4a16 is None else f"{w4a16:.2f}",
        "GPU beside ours": _gpu(row.gpu),
    }


def _gpu(read: dict | None) -> str:
    """Clock, power, in how much of the time a kernel ran, and how often the clock was held back."""
    if not read or not read.get("readings"):
        return "not read"
    units = {"sm_clock_mhz": " MHz", "power_w": " W", "busy_percent": "% busy"}
    values = {name: read.get(name) for name in units}
    told = (f"{value:.0f}{units[name]}" for name, value in values.items() if value is not None)
    shown = ", ".join(told)
    if not read["slowed"]:
        return shown
    share = read["slowed"] / read["readings"]
    return f"{shown}, slowed {share:.0%} of the time ({', '.join(read['slowed_by'])})"
