# SPDX-License-Identifier: Apache-2.0
"""Tiny inputs, and one finished run that many tests look at."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runner import Inputs, Workflow, tiny_config, write_inputs


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
            write_inputs(folder)
    return Inputs(folder, tiny_config(folder))


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
