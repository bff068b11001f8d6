# SPDX-License-Identifier: Apache-2.0
"""Where a record says that it comes from."""

import subprocess

import pytest

from comet import measurements


def test_a_checkout_names_its_commit(tmp_path, monkeypatch):
    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    monkeypatch.setattr(measurements, "REPOSITORY", tmp_path)
    monkeypatch.setenv("COMET_COMMIT", "not this one")
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    found = measurements.provenance({}, 0)
    assert (found["commit"], found["dirty"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("two")
    assert measurements.provenance({}, 0)["dirty"] is True


@pytest.mark.parametrize(
    "named, commit, dirty",
    [("abc123", "abc123", False), ("abc123-dirty", "abc123", True), (None, None, None)],
)
def test_a_copy_without_history_is_told_its_commit(tmp_path, monkeypatch, named, commit, dirty):
    monkeypatch.setattr(measurements, "REPOSITORY", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("COMET_COMMIT", raising=False)
    if named:
        monkeypatch.setenv("COMET_COMMIT", named)
    found = measurements.provenance({}, 0)
    assert (found["commit"], found["dirty"]) == (commit, dirty)


@pytest.mark.parametrize("program", ["/home/someone/bin/comet", "/home/someone/comet/cli.py"])
def test_the_command_names_no_folder(program, monkeypatch):
    monkeypatch.setattr(measurements.sys, "argv", [program, "bench", "gemm"])
    assert measurements.provenance({}, 0)["command"] == "comet bench gemm"


def test_the_processor_is_named_where_the_system_tells(tmp_path, monkeypatch):
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\n")
    monkeypatch.setattr(measurements, "CPU_FACTS", facts)
    monkeypatch.setattr(measurements.platform, "machine", lambda: "x86_64")
    assert measurements.environment()["processor"] == "Some CPU @ 2 GHz (x86_64)"
    monkeypatch.setattr(measurements, "CPU_FACTS", tmp_path / "none")
    assert measurements.environment()["processor"] == "x86_64"
