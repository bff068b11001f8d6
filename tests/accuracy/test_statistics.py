# SPDX-License-Identifier: Apache-2.0
"""Recovery and its errors, against closed forms and against scipy."""

import math

import numpy as np
import pytest

from comet.accuracy import statistics


@pytest.fixture
def draw():
    return np.random.default_rng(3)


def test_the_gap_closed_is_the_logarithmic_share():
    p16, p4, x = 32.29, 224.95, 40.97
    by_hand = math.log(p4 / x) / math.log(p4 / p16)
    assert statistics.gap_closed(math.log(x), math.log(p16), math.log(p4)) == pytest.approx(by_hand)
    assert statistics.gap_closed(2.0, 2.0, 5.0) == 1 and statistics.gap_closed(5.0, 2.0, 5.0) == 0


def test_the_paired_error_is_that_of_the_paired_t_test(draw):
    scipy_stats = pytest.importorskip("scipy.stats")
    first, second = draw.normal(3.0, 0.5, 18), draw.normal(3.1, 0.5, 18)
    test = scipy_stats.ttest_rel(first, second)
    ours = statistics.paired_stderr(first, second)
    assert (first - second).mean() / ours == pytest.approx(test.statistic)


def test_the_bootstrap_of_a_mean_has_the_error_of_a_mean(draw):
    samples = draw.normal(size=400)
    estimate = statistics.bootstrap(samples[None], lambda rows: rows[0].mean(-1))
    assert estimate.value == pytest.approx(samples.mean())
    assert estimate.stderr == pytest.approx(samples.std(ddof=1) / 20, rel=0.08)
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * estimate.stderr, rel=0.1)


def test_what_rows_share_cancels(draw):
    hard = draw.normal(3.0, 1.0, 50)
    better, worse = hard + draw.normal(0, 0.01, 50), hard + 0.1 + draw.normal(0, 0.01, 50)
    change = statistics.loss_ratio(worse, better)
    assert change.value == pytest.approx(math.expm1(0.1), rel=0.1)
    assert change.stderr < 0.005 and change.beyond_two
    assert change.low < change.value < change.high


def test_the_interval_of_the_gap_holds_the_truth(draw):
    inside = 0
    for trial in range(60):
        w4a16 = draw.normal(3.5, 0.3, 12)
        w4a4 = w4a16 + draw.normal(2.0, 0.1, 12)
        row = w4a16 + draw.normal(0.2, 0.05, 12)
        estimate = statistics.gap_estimate(row, w4a16, w4a4, seed=trial)
        inside += estimate.low <= 0.9 <= estimate.high
    assert inside >= 48


def test_the_error_of_paired_items_is_mcnemars():
    first = statistics.items_of("1" * 60 + "0" * 20 + "1" * 15 + "0" * 5)
    second = statistics.items_of("1" * 60 + "0" * 20 + "0" * 15 + "1" * 5)
    estimate = statistics.accuracy_difference(first, second)
    by_hand = math.sqrt(((15 + 5) / 100 - 0.1**2) / 99)
    assert estimate.value == pytest.approx(0.1) and estimate.stderr == pytest.approx(by_hand)
    ratio = statistics.accuracy_ratio(first, second)
    assert ratio.value == pytest.approx(0.75 / 0.65) and ratio.low < ratio.value < ratio.high


def test_one_sample_has_no_error():
    estimate = statistics.loss_ratio(np.array([2.0]), np.array([1.0]))
    assert estimate.value == pytest.approx(math.e - 1) and math.isnan(estimate.stderr)
    assert not estimate.beyond_two
    nothing = statistics.accuracy_ratio(np.array([1.0, 0.0]), np.array([0.0, 0.0]))
    assert math.isnan(nothing.value)


def test_losses_of_windows_are_per_scored_token():
    assert statistics.mean_losses([1023.0, 2046.0], 1024).tolist() == [1.0, 2.0]
