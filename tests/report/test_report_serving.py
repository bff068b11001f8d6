# SPDX-License-Identifier: Apache-2.0
"""Serving in the report: throughput beside its bars, and the KV cache computed and measured."""

import pytest
from report_inputs import MADE

from comet.measurements import Measurement
from comet.report.serving import serving_summary
from comet.speed.serving.bars import BAR_CASE, RIVALS, Row, bar, page_ratio, ratio_with_tails

RATES = {"vllm-bf16": 8000, "vllm-w4a16": 9000, "vllm-fp8": 10000, "vllm-fp8-kv8": 11000}
TOKENS = {"vllm-comet": 3.6e6, "vllm-bf16": 0.9e6}


def record(metric: str, case: dict, backend: str, value: float) -> dict:
    made = Measurement("serving", case, metric, "1", backend, [value], **MADE)
    return made.as_dict()


def run(ours: float, left_out: str = "") -> list[dict]:
    rates = {name: rate for name, rate in RATES.items() if name != left_out}
    cache = {"model": BAR_CASE["model"], "memory_cap": None}
    return [
        *(
            record("tokens_per_s", BAR_CASE, *pair)
            for pair in (rates | {"vllm-comet": ours}).items()
        ),
        *(record("kv_cache_tokens", cache, *pair) for pair in TOKENS.items()),
    ]


@pytest.mark.parametrize(
    "ours, reached", [(18180, "goal"), (14300, "good"), (12650, "must"), (12000, "none")]
)
def test_the_bars_load_reaches_a_bar(ours, reached):
    found = serving_summary(run(ours), [])
    assert f"Reached: {reached}." in found["sentences"][0]
    assert f"{ours / 11000:.3f} times the best rival (vllm-fp8-kv8)" in found["sentences"][0]
    (row,) = found["rows"]
    assert row["Best rival"] == "vllm-fp8-kv8"
    assert row["Over W4A16"] == f"{ours / 9000:.2f}"


def test_what_held_the_gpu_back_stands_beside_the_throughput():
    read = {"readings": 40, "sm_clock_mhz": 1755.0, "power_w": 697.6, "slowed": 38}
    read["slowed_by"] = ["power cap"]
    records = run(14300)
    records[4] |= {"method": {"gpu": read}}
    (row,) = serving_summary(records, [])["rows"]
    shown = "1755 MHz, 698 W, slowed 95% of the time (power cap)"
    assert row["GPU beside ours"] == shown
    records[4] |= {"method": {"gpu": read | {"slowed": 0}}}
    assert serving_summary(records, [])["rows"][0]["GPU beside ours"] == "1755 MHz, 698 W"
    records[4] |= {"method": {"gpu": read | {"slowed": 0, "sm_clock_mhz": None}}}
    assert serving_summary(records, [])["rows"][0]["GPU beside ours"] == "698 W"
    records[4] |= {"method": {"gpu": read | {"slowed": 0, "busy_percent": 96}}}
    shown = "1755 MHz, 698 W, 96% busy"
    assert serving_summary(records, [])["rows"][0]["GPU beside ours"] == shown
    records[4] |= {"method": {"gpu": {"missing": "no NVML"}}}
    assert serving_summary(records, [])["rows"][0]["GPU beside ours"] == "not read"


def test_rows_stand_by_their_number_of_requests():
    records = []
    for requests in ("max", 256, 4):
        again = run(14300)[:-2]
        records += [r | {"case": r["case"] | {"requests": requests}} for r in again]
    shown = serving_summary(records, [])["rows"]
    assert [row["Requests"] for row in shown] == ["4", "256", "max"]


def test_a_slow_w4a16_engine_alone_is_no_goal():
    assert bar(Row(BAR_CASE, 12000.0, RATES | {"vllm-w4a16": 4000})) == "none"


@pytest.mark.parametrize("rival", RIVALS)
def test_a_missing_rival_leaves_the_bar_open(rival):
    assert "Reached: incomplete." in serving_summary(run(18180, rival), [])["sentences"][0]


def test_engines_of_different_runs_are_not_compared():
    records = run(14300)
    records[-3] = records[-3] | {"provenance": records[-3]["provenance"] | {"run_id": "another"}}
    found = serving_summary(records, [])
    assert found["rows"] == []
    assert "not measured with COMET and a rival in one run" in found["sentences"][0]


def test_the_cache_is_computed_and_measured():
    computed, measured = serving_summary(run(14300), [])["sentences"][1:]
    assert "3.66 times the tokens of a 16-bit cache (bar 3.6)" in computed
    assert "1,280 tokens a request 3.35 times (bar 3.3)" in computed
    assert "3,600,000 tokens with COMET and 900,000 in 16 bit, 4.00 times" in measured


def test_the_reference_run_stands_in():
    assert "(the reference run)" in serving_summary([], run(14300))["sentences"][0]


def test_the_ratios_are_of_the_true_sizes():
    from comet.formats.kv4 import PAGE, page_bytes
    from comet.kernels.kv4_cache import PagedKV4Cache

    requests, tokens = 3, 1280
    pages = requests * tokens // PAGE
    cache = PagedKV4Cache(pages, 8, 128, requests, tokens)
    assert cache.cache.shape == (pages, 8, page_bytes(128))
    sixteen_bit = 2 * 2 * requests * tokens * 8 * 128
    held = cache.cache.numel() + cache.tail.numel() * cache.tail.element_size()
    assert ratio_with_tails(128, tokens) == sixteen_bit / held >= 3.3
    assert page_ratio(128) == sixteen_bit / cache.cache.numel() >= 3.6
