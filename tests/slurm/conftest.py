# SPDX-License-Identifier: Apache-2.0
"""A Slurm that the tests start, and the workflow submitting to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, missing, running_cluster
from runner import alone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, shared) -> Iterator[Cluster]:
    """One node with two pretended A100s, for as long as the tests run."""
    if reason := missing():
        pytest.skip(reason)
    with alone(shared / "slurm"), running_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def folder(tmp_path) -> Path:
    """Working directory of a run."""
    return tmp_path / "run"
