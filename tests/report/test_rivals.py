# SPDX-License-Identifier: Apache-2.0
"""FMPQ beside its rivals in the report."""

import math

from comet.report.rivals import rival_summary


def record(backend: str, losses: list[float], windows: str = "6-8") -> dict:
    case = {"model": "m", "dataset": "d", "split": "test", "context": 11, "windows": windows}
    return {
        "case": case,
        "backend": backend,
        "metric": "ppl_token_11",
        "status": "ok",
        "median": math.exp(sum(losses) / len(losses)),
        "method": {"window_losses": [loss * 10 for loss in losses]},
    }


RECORDS = [
    record("fmpq-w4ax", [3.5, 3.6, 3.7]),
    record("fmpq-plus-w4ax", [3.3, 3.41, 3.49]),
    record("hadamard-w4a4", [3.4, 3.5, 3.59]),
    record("atom-w4a4", [3.5, 3.61, 3.69]),
    record("w16a16", [3.0, 3.1, 3.2]),
]


def test_each_rival_is_compared_on_the_same_windows():
    rows = rival_summary(RECORDS, [])["rows"]
    assert [row["Other method"] for row in rows] == ["hadamard-w4a4", "atom-w4a4"]
    assert rows[0]["Text"] == "d, context 11, windows 6-8"
    mean = (3.3 + 3.41 + 3.49 - 3.4 - 3.5 - 3.59) / 3
    assert rows[0]["FMPQ+ against it"].startswith(f"{math.expm1(mean):+.1%}")


def test_the_verdict_says_who_wins_beyond_two_errors():
    sentences = rival_summary(RECORDS, [])["sentences"][1:]
    assert len(sentences) == 2
    assert "without any INT8 beats FMPQ at equal" in sentences[0]
    assert "is worse than FMPQ+" in sentences[1]
    level = [record("fmpq-w4ax", [3.4, 3.6, 3.59]), *RECORDS[2:]]
    assert "does not differ from FMPQ" in rival_summary(level, [])["sentences"][1]


def test_effort_is_equal_where_tokens_are_weighed_alike():
    def weighed(backend: str, config: dict) -> dict:
        losses = [3.5, 3.6, 3.7] if backend.startswith("fmpq") else [3.4, 3.5, 3.59]
        return record(backend, losses) | {"provenance": {"config": config}}

    both = {"fmpq": {"end_loss": True}, "methods": {"hadamard-w4a4": {"end_loss": True}}}
    rows = [weighed(name, both) for name in ("fmpq-w4ax", "hadamard-w4a4", "atom-w4a4")]
    found = rival_summary(rows, [])
    assert [row["its weights"] for row in found["rows"]] == ["same effort", "as published"]
    assert "beats FMPQ at equal weight effort" in found["sentences"][1]
    alone = {"fmpq": {"end_loss": True}}
    found = rival_summary([weighed(name, alone) for name in ("fmpq-w4ax", "hadamard-w4a4")], [])
    assert found["rows"][0]["its weights"] == "the same but for the weight of tokens"
    assert "at equal weight effort" not in found["sentences"][1]


def test_without_a_rival_there_is_nothing():
    assert rival_summary(RECORDS[-1:], []) == {"sentences": [], "rows": []}
    assert rival_summary([], RECORDS)["rows"]
