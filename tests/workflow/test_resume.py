# SPDX-License-Identifier: Apache-2.0
"""An interrupted run goes on where it was, and ends with the same numbers."""

import signal


def done_records(workflow) -> dict:
    """Finished record files with their times."""
    return {path: path.stat().st_mtime_ns for path in workflow.path("records").rglob("*.jsonl")}


def scoring(workflow) -> bool:
    """Whether the quantized model is complete and a perplexity is being computed."""
    return any((workflow.directory / "logs" / "local-tiny" / "accuracy").glob("*fmpq*.log"))


def without_times(records: list[dict]) -> list[dict]:
    """Records without what differs between two runs of the same thing."""
    plain = []
    for record in records:
        provenance = {
            key: value
            for key, value in record["provenance"].items()
            if key not in ("start", "run_id", "command", "commit", "dirty")
        }
        plain.append(record | {"provenance": provenance})
    return plain


def test_sigint_then_the_same_command(workflow, finished_run):
    output = workflow.interrupt("accuracy", lambda: scoring(workflow), signal.SIGINT)
    assert "100%" not in output
    before = done_records(workflow)
    assert any(path.parent.name == "quantize" for path in before)
    workflow.run("accuracy")
    after = done_records(workflow)
    assert all(after[path] == time for path, time in before.items())
    assert without_times(workflow.records("accuracy")) == without_times(
        finished_run.records("accuracy")
    )


def test_sigkill_then_unlock_and_the_same_command(workflow, finished_run):
    workflow.interrupt("accuracy", lambda: scoring(workflow), signal.SIGKILL)
    assert "LockException" in workflow.run("accuracy", expect=1)
    workflow.run("accuracy", options=("--unlock",))
    workflow.run("accuracy")
    assert without_times(workflow.records("accuracy")) == without_times(
        finished_run.records("accuracy")
    )
    quantized = workflow.path("quantized", "tiny", "fmpq", "statistics.safetensors")
    same = finished_run.path("quantized", "tiny", "fmpq", "statistics.safetensors")
    assert quantized.read_bytes() == same.read_bytes()
