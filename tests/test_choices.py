# SPDX-License-Identifier: Apache-2.0
"""The table of what the open options are worth."""

from comet.choices import choice_rows

CASE = {"model": "m", "dataset": "d", "windows": "0-5"}


def record(median: float | None, status: str = "ok", **case) -> dict:
    config = {"choices": {"max": {"outlier_metric": "max"}, "h": {"act_hadamard": True}}}
    return {
        "case": CASE | case,
        "backend": "fmpq-w4ax",
        "metric": "ppl_token_1024",
        "median": median,
        "status": status,
        "provenance": {"config": config},
    }


def test_choices_stand_beside_the_default_of_the_same_case():
    other = record(1.0, windows="0-1")
    rows = choice_rows(
        [record(44.0, choice="max"), record(38.0, choice="h")], [other, record(40.0)]
    )
    assert rows == [
        {
            "Choice": "h",
            "Options": "act_hadamard = True",
            "Perplexity": "38.00",
            "Against the default": "-5.0%",
        },
        {
            "Choice": "max",
            "Options": "outlier_metric = max",
            "Perplexity": "44.00",
            "Against the default": "+10.0%",
        },
    ]


def test_a_missing_default_and_a_failed_choice():
    rows = choice_rows([record(44.0, choice="max"), record(None, "failed", choice="h")], [])
    assert [row["Against the default"] for row in rows] == ["not measured"]
    assert choice_rows([], [record(40.0)]) == []
