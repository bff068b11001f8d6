# SPDX-License-Identifier: Apache-2.0
"""The comet command, its publish and its doctor."""

import subprocess
from pathlib import Path

import pytest

from comet.cli import main
from comet.errors import UserError
from comet.measurements import Measurement, read_records, skipped, write_records
from comet.publish import publish
from comet.speed import capability

CASE = {"model": "LLaMA-3-8B", "layer": "o", "m": 16, "n": 4096, "k": 4096}
CLEAN = {"commit": "0" * 40, "dirty": False}


def record(**fields) -> Measurement:
    values = {"samples": [1.0, 3.0, 2.0], "provenance": CLEAN} | fields
    return Measurement("gemm", CASE, "time", "us", "comet-w4ax", **values)


@pytest.fixture
def repository(tmp_path) -> Path:
    """A clean clone with one commit."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "file").write_text("one", encoding="utf-8")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


@pytest.fixture
def run_folder(tmp_path) -> Path:
    """A finished run with one measured and one skipped record."""
    folder = tmp_path / "results" / "local-h200"
    absent = skipped("gemm", CASE, "time", "us", "trtllm-w8a8", "TensorRT-LLM is not installed")
    write_records(folder / "gemm.jsonl", [record(), absent])
    return folder


def test_publish_copies_what_was_measured(repository, run_folder):
    (written,) = publish(run_folder, "h200", repository)
    assert written == repository / "results" / "h200" / "gemm.jsonl"
    assert read_records(written) == [record()]


@pytest.mark.parametrize("name", ["local-h200", "../h200", "H200", ""])
def test_publish_refuses_the_name_of_a_run(repository, run_folder, name):
    with pytest.raises(UserError, match="not usable"):
        publish(run_folder, name, repository)


def test_publish_refuses_changed_files(repository, run_folder):
    (repository / "file").write_text("two", encoding="utf-8")
    with pytest.raises(UserError, match=r"has changed files \(file\)"):
        publish(run_folder, "h200", repository)
    assert not (repository / "results").exists()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(provenance=CLEAN | {"dirty": True}), "was measured from changed files"),
        (record(provenance={}), "was measured from changed files"),
        (record(samples=[], status="failed", reason="out of memory"), r"failed \(out of memory\)"),
    ],
)
def test_publish_refuses_a_record_that_is_no_result(repository, run_folder, bad, message):
    write_records(run_folder / "gemm.jsonl", [record(), bad])
    with pytest.raises(UserError, match=message):
        publish(run_folder, "h200", repository)
    assert not (repository / "results").exists()


def test_publish_keeps_failed_records_on_demand(repository, run_folder):
    failed = record(samples=[], status="failed", reason="the rival refuses this shape")
    write_records(run_folder / "gemm.jsonl", [record(), failed])
    (written,) = publish(run_folder, "h200", repository, keep_failed=True)
    assert read_records(written) == [record(), failed]


def test_publish_refuses_an_empty_run(repository, tmp_path):
    with pytest.raises(UserError, match="no measured records"):
        publish(tmp_path, "h200", repository)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "nowhere", "--row", "w16a16", "--text", "t"], "nowhere has no config.json"),
        (["evaluate", "nowhere", "--row", "w4x", "--text", "t"], "row 'w4x' is unknown"),
        (["evaluate", "m", "--row", "w16a16", "--text", "t", "--windows", "x"], "--windows is 'x'"),
        (["quantize", "nowhere", "--text", "t", "--out", "o"], "nowhere has no config.json"),
        (["bench", "gemm", "GPT-5"], "no shapes of a model 'GPT-5'; known are LLaMA-1-30B"),
        (["quantize", "m", "--text", "t", "--out", "o", "--config", "none.yaml"], "does not exist"),
        (["publish", "nowhere", "local-x"], "reference run name 'local-x' is not usable"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("comet: ")
    assert message in printed.err


@pytest.mark.skipif(capability.detect()["gpu"] is not None, reason="needs a machine without a GPU")
def test_bench_without_a_gpu_records_why(tmp_path, capsys):
    arguments = ["bench", "gemm", "LLaMA-3-8B", "--m", "16", "64", "--backends", "comet-w4ax"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    path = tmp_path / "gemm.jsonl"
    records = read_records(path)
    assert len(records) == 8
    assert {record.status for record in records} == {"skipped"}
    assert records[0].case["n"] == 6144
    assert "NVIDIA GPU" in records[0].reason
    assert capsys.readouterr().out == f"{path}\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla T4", "tesla-t4"),
        (None, "cpu"),
    ],
)
def test_a_gpu_name_becomes_a_folder_name(name, expected):
    assert capability.slug(name) == expected
