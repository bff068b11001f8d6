# SPDX-License-Identifier: Apache-2.0
"""A small report: two figures, a few made-up records, a skipped one, a reference run."""

from pathlib import Path

import pytest
from report_inputs import CASE, CONTEXT, GEMM, MADE, NAMES, ON_GPU, PAPER, REASON

from comet.figures import FIGURES, FigureInputs, draw, save
from comet.measurements import Measurement, skipped
from comet.report import render


@pytest.fixture(scope="session")
def records() -> list[dict]:
    """Perplexity of two backends, and a kernel that could not run."""
    values = {"w16a16": 20.0, "fmpq-w4ax": 30.25}
    made = [
        Measurement("accuracy", CASE, "ppl_token_64", "1", backend, [value], **MADE)
        for backend, value in values.items()
    ]
    made.append(skipped("gemm", GEMM, "time", "us", "comet-w4ax", REASON, **MADE))
    return [record.as_dict() for record in made]


@pytest.fixture(scope="session")
def reference() -> list[dict]:
    """One number of a reference run."""
    return [Measurement("gemm", GEMM, "time", "us", "comet-w4a8", [12.5], **ON_GPU).as_dict()]


@pytest.fixture(scope="session")
def figures(tmp_path_factory, records, reference) -> dict[str, Path]:
    """Figure name -> SVG."""
    folder = tmp_path_factory.mktemp("figures")
    inputs = FigureInputs(records, PAPER, None, reference, CONTEXT["labels"])
    return {name: save(draw(name, inputs), folder / name)[0] for name in NAMES}


@pytest.fixture(scope="session")
def report(tmp_path_factory, figures, records, reference) -> Path:
    """The rendered report."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    specs = {name: FIGURES[name] for name in (*NAMES, "fig3")}
    render(out, figures, specs, records, reference, CONTEXT)
    return out
