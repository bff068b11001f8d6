# SPDX-License-Identifier: Apache-2.0
"""What a workflow job writes where."""

import sys
from types import SimpleNamespace

import pytest

from comet.errors import UserError
from comet.logs import logged


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    return SimpleNamespace(log=[str(tmp_path / "job.log")], output=["results/out.jsonl"])


def log_of(job) -> str:
    with open(job.log[0], encoding="utf-8") as stream:
        return stream.read()


def test_output_goes_to_the_log_and_the_command_is_named(job, capfd):
    with logged(job):
        print("to stdout")
        print("to stderr", file=sys.stderr)
    assert log_of(job) == "to stdout\nto stderr\n"
    assert capfd.readouterr() == ("", "")
    assert sys.argv == ["snakemake", "results/out.jsonl"]


def test_bad_input_is_one_line_in_the_log(job):
    out, err = sys.stdout, sys.stderr
    with pytest.raises(SystemExit) as stopped, logged(job):
        raise UserError("the disk is full;\nfree some")
    assert stopped.value.code == 1
    assert log_of(job) == "comet: the disk is full; free some\n"
    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_fault_leaves_its_traceback_in_the_log(job, capfd):
    with pytest.raises(SystemExit), logged(job):
        raise ZeroDivisionError
    assert "ZeroDivisionError" in log_of(job)
    assert "Traceback" not in capfd.readouterr().err
