# SPDX-License-Identifier: Apache-2.0
"""An interrupted run goes on where it was, and ends with the same results."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

# Measured anew by every run.
TIMED_UNITS = ("s", "us", "MiB", "tokens/s")
IN_CI = 3


def done_records(workflow) -> dict:
    """Finished record files with their times."""
    return {path: path.stat().st_mtime_ns for path in workflow.path("records").rglob("*.jsonl")}


def scoring(workflow) -> bool:
    """Whether the quantized model is complete and a perplexity is being computed."""
    return any((workflow.directory / "logs" / "local-tiny" / "accuracy").glob("*fmpq*.log"))


def comparable(record: dict) -> dict:
    """A record without what differs between two runs of the same thing."""
    left_out = ("start", "run_id", "commit", "dirty")
    kept = {key: value for key, value in record["provenance"].items() if key not in left_out}
    plain = record | {"provenance": kept, "environment": None}
    if record["unit"] in TIMED_UNITS:
        plain |= {"samples": len(record["samples"]), "median": None, "method": None}
    return plain


def content(path: Path):
    if path.suffix == ".jsonl":
        return [comparable(json.loads(line)) for line in path.read_text().splitlines()]
    return path.read_bytes()


def results(workflow) -> dict:
    """Every result file by its name; of the report, which tells times, only that it is there."""
    files = {path.relative_to(workflow.path()): path for path in workflow.path().rglob("*")}
    return {
        str(name): content(path) if path.suffix != ".html" else "report"
        for name, path in files.items()
        if path.is_file()
    }


def test_sigint_then_the_same_command(workflow, finished_run):
    output = workflow.interrupt("report", lambda: scoring(workflow), signal.SIGINT)
    assert "100%" not in output
    before = done_records(workflow)
    assert any(path.parent.name == "quantize" for path in before)
    workflow.run("report")
    after = done_records(workflow)
    assert all(after[path] == time for path, time in before.items())
    assert results(workflow) == results(finished_run)


def number_of_logs(workflow) -> int:
    return len(list((workflow.directory / "logs").rglob("*.log")))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=[pytest.mark.slow] if n >= IN_CI else []) for n in range(20)],
)
def test_a_run_killed_at_a_random_moment(workflow, finished_run, seed):
    # The moment is a number of started jobs and some time, so that it lies within the run on any
    # machine: from before the first job to the last.
    moment = random.Random(seed)
    jobs = moment.randrange(number_of_logs(finished_run))
    delay = moment.uniform(0, 3)

    def ready() -> bool:
        if number_of_logs(workflow) < jobs:
            return False
        time.sleep(delay)
        return True

    workflow.interrupt("report", ready, signal.SIGKILL)
    workflow.run("report", options=("--unlock",))
    workflow.run("report")
    assert results(workflow) == results(finished_run)
    assert not list(workflow.directory.rglob("*.part"))
