# SPDX-License-Identifier: Apache-2.0
import pytest

from comet.accuracy.choices import NOISE, Comparison, compare_choices, distinct_choices
from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration


@pytest.fixture(scope="module")
def records(tiny):
    text = tiny / "text.jsonl"
    calibration = Calibration(text, "words", windows=2, context=64)
    comparison = Comparison("tiny", tiny / "model", calibration, "words", "test", text, 128, "0-1")
    return compare_choices(comparison, FMPQOptions(), {}, seed=0)


def test_every_choice_is_scored_and_says_what_differs(records):
    assert [r.case["options"] for r in records] == [*distinct_choices(FMPQOptions()), NOISE]
    for record in records[:-1]:
        assert record.case["options"].items() <= record.method["options"].items()


def test_the_first_row_is_the_configured_method(tiny, records):
    row = Evaluation(
        "fmpq-w4ax",
        "tiny",
        tiny / "model",
        "words",
        "test",
        tiny / "text.jsonl",
        128,
        "0-1",
        checkpoint=tiny / "fmpq",
    )
    # The checkpoint absorbs a permutation, which only changes the order of sums.
    assert records[0].median == pytest.approx(evaluate_row(row, {}, 0)[0].median, rel=0.02)


def test_noise_is_small_and_choices_matter(records):
    first, noise = records[0].median, records[-1].median
    assert noise == pytest.approx(first, rel=0.05)
    assert len({r.median for r in records[:-1]}) > len(records) // 2
    (weighed,) = (r for r in records if r.case["options"].get("end_loss"))
    assert weighed.median != first


def test_a_choice_that_changes_nothing_is_left_out():
    rounding = {"weight_rounding": "gptq"}
    assert rounding not in distinct_choices(FMPQOptions())
    assert rounding in distinct_choices(FMPQOptions(weight_rounding="nearest"))
    assert distinct_choices(FMPQOptions())[0] == {}
