# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or absent: atomic writes and checksums."""

import glob
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from comet.errors import UserError

_HOST = platform.node()


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it into place when the block succeeds.

    Works for files and for folders. On any error the temporary is removed and ``path`` is left as
    it was.

    Raises:
        UserError: the disk is full or the place cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(path)
        _remove(temporary)
        yield temporary
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; free space or make the folder "
            "writable, then run the same command again"
        ) from error
    finally:
        _remove(temporary)


def _remove_left_over(path: Path) -> None:
    """Remove what writers of ``path`` left that were killed on this machine."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.{_HOST}.*.part"):
        writer = part.suffixes[-2].removeprefix(".")
        if writer.isdigit() and not _runs(int(writer)):
            _remove(part)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists() or path.is_symlink():
        path.unlink()


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: object) -> None:
    """Write ``value`` as indented JSON atomically; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_json_lines(path: Path | str, rows: Iterable[dict]) -> None:
    """Write one JSON object a line atomically; NaN and infinity are refused."""
    write_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def read_json_lines(path: Path | str) -> list[dict]:
    """Read one JSON object a line.

    Raises:
        UserError: a line is not JSON; the message names file and line.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(
                f"{path}:{number} is not JSON ({error}); delete the line or the file"
            ) from error
    return rows


def sha256_of(path: Path | str) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
