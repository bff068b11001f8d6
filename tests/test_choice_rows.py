# SPDX-License-Identifier: Apache-2.0
"""The table of what the open options are worth."""

from comet.report.choices import choice_rows


def record(median: float | None, options: dict, status: str = "ok", windows: str = "0-5") -> dict:
    return {
        "case": {"model": "m", "dataset": "d", "windows": windows, "options": options},
        "metric": "ppl_token_1024",
        "median": median,
        "status": status,
    }


def test_choices_stand_beside_the_default_of_the_same_text():
    other = record(1.0, {}, windows="0-1")
    failed = record(None, {"act_hadamard": True}, "failed")
    rows = choice_rows([record(40.0, {}), record(44.0, {"int8_share": 0.0}), failed, other])
    assert [row["Choice"] for row in rows] == [
        "base: the defaults",
        "int8_share = 0.0",
        "base: the defaults",
    ]
    assert [row["Against the base"] for row in rows] == ["+0.0%", "+10.0%", "+0.0%"]
    assert rows[1] == rows[1] | {"Model": "m", "Perplexity": "44.00"}


def test_what_a_choice_costs_a_kernel():
    plus = {"act_zero_point": True, "act_hadamard": True, "channel_order": "moved"}
    rows = choice_rows([record(40.0, {}), record(36.0, plus), record(41.0, {"migration": 0.5})])
    assert [row["Cost in a kernel"] for row in rows] == [
        "none",
        "sm_90a: none; sm_80: one precomputed weight sum a block; "
        "7 additions a value where activations are quantized",
        "none",
    ]


def test_without_a_default_nothing_is_compared():
    (row,) = choice_rows([record(44.0, {"int8_share": 0.0})])
    assert row["Against the base"] == "unknown"
    assert choice_rows([]) == []


def test_a_base_that_is_not_the_default_says_so():
    base = record(40.0, {}) | {"method": {"options": {"weight_rounding": "nearest"}}}
    (row,) = choice_rows([base])
    assert row["Choice"] == "base: weight_rounding = nearest"
    assert row["Text"] == "d, windows 0-5"
