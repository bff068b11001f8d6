# SPDX-License-Identifier: Apache-2.0
"""The table of decode attention in the report."""

import pytest
from report_inputs import MADE

from comet.measurements import Measurement
from comet.report.attention import attention_summary
from comet.speed.attention_bars import APPEND_CASE
from comet.speed.attention_cases import REFERENCE, attention_case, attention_cases


def time(case: dict, backend: str, value: float) -> dict:
    return Measurement("attention", case, "time", "us", backend, [value], **MADE).as_dict()


@pytest.fixture
def run() -> list[dict]:
    times = {"comet-kv4": 10.0, "sdpa-bf16": 27.0, "vllm-fa3-bf16": 30.0}
    cases = [case for model in REFERENCE for case in attention_cases(model)]
    records = [time(case, name, value) for case in cases for name, value in times.items()]
    share = Measurement(
        "attention",
        attention_case(*APPEND_CASE.values()),
        "append_share",
        "percent",
        "comet-kv4",
        [1.25],
        **MADE,
    )
    return [*records, share.as_dict()]


def test_the_mean_its_bar_and_the_append_are_said(run):
    found = attention_summary(run, [])
    mean, append = found["sentences"]
    assert "over 26 of 26 rows of this run" in mean
    assert ": 2.70." in mean and "Reached: good." in mean
    assert "1.25 % of decode (llama3-8b, batch 64, context 4096" in append
    assert found["rows"][0]["Faster 16-bit kernel"] == "sdpa-bf16"
    assert found["rows"][0]["Speed-up"] == "2.70"


def test_missing_rows_are_named(run):
    gone = run[-2]
    found = attention_summary([r for r in run if r is not gone], [])
    assert "Reached: incomplete." in found["sentences"][0]
    assert "llama3-70b, batch 256, context 4096." in found["sentences"][1]


def test_the_reference_run_stands_in_and_nothing_is_said_as_such(run):
    assert "of the reference run" in attention_summary([], run)["sentences"][0]
    assert attention_summary([], []) == {
        "rows": [],
        "sentences": ["No decode attention was measured."],
    }
