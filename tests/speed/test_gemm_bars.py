# SPDX-License-Identifier: Apache-2.0
"""Means, floors, ceilings and verdicts over the reference layers, from made-up times."""

import json
from pathlib import Path

import pytest

from comet.report.gemm import CONTROL, gemm_summary
from comet.speed.cases import REFERENCE_BACKENDS, jobs_of
from comet.speed.gemm_bars import RIVALS, as_markdown, batch_rows, ceiling, mean_over_batches

REFERENCE = Path(__file__).parents[2] / "results" / "h200" / "gemm.jsonl"


def made_up(ours=10.0, m=(16,), run="one", left_out=(), cublas=30.0, rival=15.0, **change):
    """cuBLAS at 30 us, rivals at 15 us, the control at 10 us, W4Ax at ``ours``."""
    times = dict.fromkeys(RIVALS, rival) | {
        "cublas-bf16": cublas,
        "comet-w4ax": ours,
        "comet-w4a8": 10.0,
    }
    return [
        {
            "kind": "gemm",
            "status": "ok",
            "case": job.case | change,
            "backend": name,
            "metric": "time",
            "median": times[name],
            "provenance": {"run_id": run},
        }
        for job in jobs_of("reference", list(m))
        for name in REFERENCE_BACKENDS
        if name not in left_out
    ]


def test_a_row_is_a_mean_over_the_six_layers():
    (row,) = batch_rows(made_up())
    assert (row.m, row.counts) == (16, True)
    assert row.ratio == pytest.approx(3.0)
    assert (row.control, row.with_quantization) == (pytest.approx(3.0), None)
    assert row.over_rival == pytest.approx(1.5)
    assert 0.3 < row.floor_overlapped < 2.0
    assert (row.floor, row.without_overlap) == (None, None)
    assert row.verdict == "must"


def test_without_overlap_the_launch_is_part_of_the_floor():
    records = made_up()
    slower = [
        record | {"metric": "time_without_overlap", "median": 12.0}
        for record in records
        if record["backend"] == "comet-w4ax"
    ]
    (row,) = batch_rows(records + slower)
    assert row.without_overlap == pytest.approx(2.5)
    assert row.floor_overlapped * 10 / 12 < row.floor
    assert row.ratio == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"ours": 8.0}, "goal"),
        ({"ours": 12.0}, "missed: 2.9 over cuBLAS, 1.4 over the best rival"),
        ({"rival": 12.0}, "missed: 1.4 over the best rival"),
        ({"left_out": ("torch-fp8",)}, "does not count: torch-fp8 missing"),
        ({"ours": 7.0}, "goal (above the ceiling: cuBLAS is slower than its own limit)"),
    ],
)
def test_verdicts(change, verdict):
    (row,) = batch_rows(made_up(**change))
    assert row.verdict.startswith(verdict)


def test_rows_of_two_runs_do_not_count():
    records = made_up()
    for record in records:
        if record["case"]["layer"] == "o":
            record["provenance"] = {"run_id": "two"}
    (row,) = batch_rows(records)
    assert row.verdict == "does not count: from 2 runs"


def test_other_modes_and_variants_are_passed_over():
    others = [
        *made_up(ours=1.0, act_scale="token_block"),
        *made_up(ours=1.0, zero_point=True),
        *made_up(ours=1.0, variant="without-pipeline"),
    ]
    assert batch_rows(others) == []
    (row,) = batch_rows(others + made_up())
    assert row.ratio == pytest.approx(3.0)


def test_ceilings_are_those_of_the_limits():
    case = {"n": 8192, "k": 8192}
    assert ceiling(case | {"m": 1}) == pytest.approx(3.88, abs=0.02)
    assert ceiling(case | {"m": 4096}) == pytest.approx(2.0, abs=0.01)


def test_the_mean_over_batches_needs_all_of_them():
    assert mean_over_batches(batch_rows(made_up(m=[16, 64]))) is None
    rows = batch_rows(made_up(m=[16, 64, 256]))
    assert mean_over_batches(rows) == pytest.approx(3.0)
    assert as_markdown(rows).count("\n") == 4
    assert "no batch" in as_markdown([])


def test_the_report_says_what_the_control_means():
    summary = gemm_summary([], made_up(ours=5.0, m=[1024]))
    assert summary["rows"][0]["W4Ax"] == "6.00*"
    assert CONTROL in summary["sentences"]
    assert any("above the ceiling" in sentence for sentence in summary["sentences"])
    assert gemm_summary([], [])["rows"] == []


def test_the_committed_run_reaches_every_bar_that_counts():
    records = [json.loads(line) for line in REFERENCE.read_text().splitlines()]
    found = batch_rows(records)
    rows = [row for row in found if row.counts]
    assert [row.m for row in rows] == [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert {row.m for row in found} - {row.m for row in rows} == {2, 4}  # each model's own run
    assert {row.m for row in rows if row.verdict.startswith("goal")} == {1, 32, 256}
    assert all(row.verdict.startswith(("must", "goal")) for row in rows)
    assert mean_over_batches(rows) > 2.4


def test_runs_of_whole_models_do_not_replace_the_reference_run():
    """They measure some of the reference layers again, each model in a run of its own."""
    again = made_up(ours=5.0, run="model")
    models = [r for r in again if r["case"]["model"] == "LLaMA-3-8B"]
    for records in (models + made_up(), made_up() + models):
        (row,) = batch_rows(records)
        assert (row.runs, row.verdict) == (1, "must")
        assert row.ratio == pytest.approx(3.0)
