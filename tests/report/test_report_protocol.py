# SPDX-License-Identifier: Apache-2.0
"""The protocol section: choices against the usual way, and the paper's mixed contexts."""

import math

from comet.measurements import REPOSITORY
from comet.report.protocol import NOTHING, protocol_summary

PAPER = REPOSITORY / "resources" / "paper"


def way(backend, choice, value, perplexity, metric):
    case = {"model": "m", "dataset": "d", "protocol": {"choice": choice, "value": value}}
    record = {"case": case, "backend": backend, "metric": metric, "median": perplexity}
    return record | {"status": "ok", "kind": "accuracy"}


def row(backend, losses):
    case = {"model": "m", "dataset": "d", "split": "test", "context": 11, "windows": "0-1"}
    median = math.exp(sum(losses) / 20)
    record = {"case": case, "backend": backend, "metric": "ppl_token_11", "median": median}
    return record | {"status": "ok", "kind": "accuracy", "method": {"window_losses": losses}}


RECORDS = [
    way("w16a16", "context", "2048", 8.0, "ppl_token_2048"),
    way("w16a16", "usual", "context 1024", 10.0, "ppl_token_1024"),
    way("w16a16", "usual", "context 1024", 20.0, "ppl_word"),
    way("fmpq-w4a16", "usual", "context 1024", 12.0, "ppl_token_1024"),
    way("fmpq-w4a16", "context", "2048", 10.0, "ppl_token_2048"),
]


def test_each_choice_is_set_against_the_usual_way():
    first, second = protocol_summary(RECORDS, [], None)["ways"]
    assert first["Choice"] == "usual" and first["w16a16, against the usual way"] == ""
    assert first["loss of fmpq-w4a16"] == "+20.0%" and first["w16a16, per word"] == "20.00"
    assert second["w16a16, against the usual way"] == "-20.0%"
    assert second["loss of fmpq-w4a16"] == "+25.0%"


def test_the_reference_run_stands_in():
    assert len(protocol_summary([], RECORDS, None)["ways"]) == 2
    assert NOTHING in protocol_summary([], [], None)["sentences"]


def test_granularities_of_one_method_are_paired():
    records = [row("awq-w4a16", [10.0, 12.0]), row("awq-w4a16-channel", [11.0, 13.0])]
    (found,) = protocol_summary(records, [], None)["granularity"]
    assert found["Per channel over groups"] == "+10.5% \u00b1 0.0%"


def test_the_papers_mixed_contexts_are_marked():
    rows = {row["Model"]: row for row in protocol_summary([], [], PAPER)["paper"]}
    assert len(rows) == 11
    mixed = {model for model, row in rows.items() if row[""]}
    assert mixed == {"LLaMA-2-7B", "LLaMA-2-13B", "LLaMA-2-70B"}
    assert rows["LLaMA-2-7B"]["Loss as printed"] == "+0.61"
    assert rows["LLaMA-2-7B"]["Loss at one context"] == "+0.26"
    assert rows["Qwen2-72B"]["Loss at one context"] == "unknown"
