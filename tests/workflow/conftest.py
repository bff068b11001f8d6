# SPDX-License-Identifier: Apache-2.0
"""Tiny inputs, and one finished run that many tests look at."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runner import Inputs, Workflow, passages, write_model


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other test processes out of a folder that they share."""
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id) -> Path:
    """A folder that all test processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "workflow"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def inputs(shared) -> Inputs:
    """A model of two layers, forty passages, and the configuration that names them."""
    folder = shared / "inputs"
    with alone(folder):
        if not folder.exists():
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
def finished_run(shared, inputs) -> Workflow:
    """One whole run to the report, made once; for tests that only read what it left."""
    done = Workflow(shared / "finished", inputs.config)
    with alone(done.directory):
        if not done.path("report.html").exists():
            done.run("report")
    return done


@pytest.fixture
def finished(finished_run) -> Iterator[Workflow]:
    """The finished run, for a test that starts Snakemake in it."""
    with alone(finished_run.directory):
        yield finished_run
