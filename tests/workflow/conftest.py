# SPDX-License-Identifier: Apache-2.0
"""Tiny inputs, and one finished run that many tests look at."""

import json
from pathlib import Path

import pytest
from runner import Inputs, Workflow, passages, write_model


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """One worker for this folder, so that its tests share the finished run."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("workflow"))


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> Inputs:
    """A model of two layers, forty passages, and the configuration that names them."""
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model")
    lines = [json.dumps(row) for row in passages()]
    (folder / "text.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = {"kind": "file", "path": str(folder / "text.jsonl"), "format": "jsonl"}
    config = {
        "machine": "local-tiny",
        "device": "cpu",
        "references": [],
        "models": {
            "tiny": {
                "label": "random LLaMA",
                "family": "llama",
                "source": {"kind": "folder", "path": str(folder / "model")},
            }
        },
        "texts": {"tiny": {"label": "test passages", "source": {**source, "part": "halves"}}},
        "calibration": {"text": "tiny", "windows": 2, "context": 64},
        "accuracy": {
            "models": ["tiny"],
            "texts": ["tiny"],
            "context": 64,
            "windows": "0-1",
            "rows": ["w16a16", "fmpq-w4ax"],
            "rows_of": {},
        },
        "gemm": {"models": []},
        "figures": ["table1"],
    }
    return Inputs(folder, config)


@pytest.fixture
def workflow(tmp_path, inputs) -> Workflow:
    """A workflow that has not run yet."""
    return Workflow(tmp_path / "run", inputs.config)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, inputs) -> Workflow:
    """One whole run to the report, shared by the tests that only look at it."""
    done = Workflow(tmp_path_factory.mktemp("finished"), inputs.config)
    done.output = done.run("report")
    return done
