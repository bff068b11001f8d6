# SPDX-License-Identifier: Apache-2.0
"""Rows are judged against rows of the same condition, and the committed run keeps its recovery."""

import math

import pytest

from comet.accuracy import recovery
from comet.files import read_json_lines
from comet.measurements import REPOSITORY

# On WikiText-2, windows 0-5, in the committed CPU run: largest increase of perplexity over 16 bit,
# and of FMPQ the least share of the gap closed, in percent. The gap's ends have FMPQ's weights and
# move with them, so that it judges no other method. A new row gets its bars with its measurement.
INCREASE = {
    "rtn-w8a8": 0.045,
    "smoothquant-w8a8": 0.025,
    "fmpq-w4a16": 0.16,
    "awq-w4a16": 0.225,
    "omniquant-w4a16": 0.355,
    "gptq-w4a16": 0.385,
    "gptq-w4a16-channel": 0.63,
    "rtn-w4a16": 0.63,
    "w16a16-kv4": 0.02,
    "fmpq-w4ax": 0.47,
    "fmpq-w4axkv4": 0.5,
    "fmpq-token-block-w4ax": 0.435,
    "fmpq-plus-w4ax": 0.29,
    "fmpq-plus-w4axkv4": 0.31,
    "hadamard-w4a4": 0.46,
    "quarot-w4a4": 1.03,
    "quarot-w4a4kv4": 1.26,
    "quarot-g128-w4a4": 0.71,
    "quarot-g128-w4a4kv4": 0.83,
    "quarot-rtn-w4a4": 4.46,
    "atom-w4a4": 0.367,
    "atom-w4a4kv4": 0.597,
    "atom-weighted-w4a4": 0.335,
    "omniquant-w4a4": 6.59,
    "qoq-w4a8kv4": 0.394,
    "qoq-g128-w4a8kv4": 0.373,
}
GAP = {
    "fmpq-w4ax": 86.0,
    "fmpq-w4axkv4": 86.0,
    "fmpq-token-block-w4ax": 87.0,
    "fmpq-plus-w4ax": 92.0,
    "fmpq-plus-w4axkv4": 91.0,
}
COMMITTED = REPOSITORY / "results" / "cpu" / "accuracy.jsonl"


def text(backend, losses, **case):
    place = {"model": "m", "dataset": "d", "split": "test", "context": 11, "windows": "0-2"}
    return {
        "kind": "accuracy",
        "case": place | {"task": None, "limit": None} | case,
        "metric": "ppl_token_11",
        "backend": backend,
        "median": math.exp(sum(losses) / 10 / len(losses)),
        "method": {"window_losses": losses},
        "status": "ok",
    }


def task(backend, name, items, metric="acc"):
    share = items.count("1") / len(items)
    return {
        "kind": "accuracy",
        "case": {"model": "m", "dataset": name, "task": name, "limit": len(items)},
        "metric": metric,
        "backend": backend,
        "median": share,
        "method": {"items": items, "stderr": math.sqrt(share * (1 - share) / (len(items) - 1))},
        "status": "ok",
    }


RECORDS = [
    text("w16a16", [30.0, 31.0, 29.0]),
    text("fmpq-w4a16", [32.0, 33.0, 31.0]),
    text("fmpq-w4a4", [52.0, 53.5, 50.5]),
    text("fmpq-w4ax", [34.0, 35.0, 33.3]),
    text("w16a16", [1.0, 1.0], windows="5-6"),
    text("w16a16-kv", [30.5, 31.0, 29.0], kv={"set": "bits", "variant": "K4"}),
]


def test_the_gap_is_taken_from_the_ends_of_the_same_condition():
    first, second = recovery.text_rows(RECORDS).values()
    rows = {row.backend: row for row in first}
    assert list(rows) == ["w16a16", "fmpq-w4a16", "fmpq-w4a4", "fmpq-w4ax"]
    gap = rows["fmpq-w4ax"].gap
    assert gap.value == pytest.approx((52.0 - 34.1) / 20.0, abs=1e-9) and gap.stderr > 0
    assert rows["fmpq-w4a4"].gap is None and rows["w16a16"].change is None
    assert rows["fmpq-w4a16"].change.value == pytest.approx(math.expm1(0.2))
    assert [row.backend for row in second] == ["w16a16"] and second[0].gap is None


def test_two_rows_are_compared_in_pairs():
    key = recovery.condition(RECORDS[0])
    change = recovery.compare(RECORDS, key, "fmpq-w4ax", "fmpq-w4a16")
    assert change.value == pytest.approx(math.expm1(2.1 / 10)) and change.beyond_two


def test_held_out_windows_are_kept_from_those_that_chose_defaults():
    losses = [1023.0 * n for n in range(8)]
    record = text("w16a16", losses, context=1024, windows="0-7")
    first, second = recovery.split_windows([record])
    assert first["case"]["windows"] == "0-5" and second["case"]["windows"] == "6-7"
    assert first["median"] == pytest.approx(math.exp(2.5))
    assert second["median"] == pytest.approx(math.exp(6.5))
    assert second["method"]["window_losses"] == losses[6:]
    whole = text("w16a16", losses, context=1024, windows="all")
    assert [part["case"]["windows"] for part in recovery.split_windows([whole])] == ["0-5", "6-7"]
    for untouched in (text("w16a16", losses, context=2048, windows="0-7"), RECORDS[0]):
        assert recovery.split_windows([untouched]) == [untouched]


def test_tasks_are_averaged_and_set_beside_16_bit():
    records = [
        task("w16a16", "piqa", "1110"),
        task("w16a16", "piqa", "1111", "acc_norm"),
        task("w16a16", "winogrande", "1010"),
        task("fmpq-w4ax", "piqa", "1100"),
        task("fmpq-w4ax", "piqa", "0111", "acc_norm"),
        task("fmpq-w4ax", "winogrande", "1010"),
    ]
    (rows,) = recovery.task_rows(records, "acc").values()
    assert [row.mean for row in rows] == [0.625, 0.5]
    assert rows[1].cells["piqa"].difference.value == -0.25
    assert rows[1].relative.value == pytest.approx(4 / 5)
    (rows,) = recovery.task_rows(records, "acc_norm").values()
    assert rows[0].cells["piqa"].value == 1.0 and rows[0].cells["winogrande"].value == 0.5


def committed() -> dict[str, recovery.TextRow]:
    found = recovery.text_rows(recovery.split_windows(read_json_lines(COMMITTED)))
    key = ("smollm2-135m", "wikitext-2", "test", 1024, "0-5")
    return {row.backend: row for row in found[key]}


def test_no_committed_row_has_lost_recovery():
    rows = committed()
    for backend, least in GAP.items():
        assert 100 * rows[backend].gap.value >= least, backend
    for backend, most in INCREASE.items():
        assert rows[backend].change.value <= most, backend


def test_methods_that_fit_their_weights_beat_rounding_to_nearest():
    change = {backend: row.change.value for backend, row in committed().items() if row.change}
    assert change["gptq-w4a16"] < change["rtn-w4a16"]
    assert change["omniquant-w4a16"] < change["rtn-w4a16"]
    assert change["omniquant-w4a4"] < change["fmpq-w4a4"]


def test_every_committed_row_has_a_bar():
    ends = {recovery.EXACT, recovery.W4A4}
    assert set(committed()) - ends <= set(INCREASE)
