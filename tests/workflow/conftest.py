# SPDX-License-Identifier: Apache-2.0
"""Runs of the workflow on tiny inputs."""

from collections.abc import Iterator

import pytest
from runner import Workflow, alone


@pytest.fixture
def workflow(tmp_path, inputs) -> Workflow:
    """A workflow that has not run yet."""
    return Workflow(tmp_path / "run", inputs.config)


@pytest.fixture
def finished(finished_run) -> Iterator[Workflow]:
    """The finished run, for a test that starts Snakemake in it."""
    with alone(finished_run.directory):
        yield finished_run
