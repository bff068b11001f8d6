# SPDX-License-Identifier: Apache-2.0
"""A made-up machine with two GPUs, and processes that hold them."""

import subprocess
import sys

import pytest
from nvml_machine import HOLD, Machine

from comet.speed import lease


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Machine:
    """Its driver has nothing to forget: a GPU that looks busy is busy."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    return Machine(monkeypatch, tmp_path)


@pytest.fixture
def holder(machine):
    """Starts processes that hold a GPU until they are killed or told to end."""
    started = []

    def start(*arguments: str) -> tuple[subprocess.Popen, str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", HOLD, *arguments]
        started.append(subprocess.Popen(command, env=machine.environment(), **pipes))
        return started[-1], started[-1].stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()
