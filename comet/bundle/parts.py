# SPDX-License-Identifier: Apache-2.0
"""A tar archive written straight into parts of a given size."""

import tarfile
from pathlib import Path

PART = "wheels.tar.{number:03d}"


class PartWriter:
    """A write-only stream that begins a new file whenever the present one is full."""

    def __init__(self, folder: Path, part_bytes: int) -> None:
        self.folder = folder
        self.part_bytes = part_bytes
        self.parts: list[Path] = []
        self._stream = None
        self._room = 0

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if self._room == 0:
                self._next_part()
            taken = self._stream.write(view[: self._room])
            self._room -= taken
            view = view[taken:]
        return len(data)

    def close(self) -> None:
        if self._stream:
            self._stream.close()

    def _next_part(self) -> None:
        self.close()
        self.parts.append(self.folder / PART.format(number=len(self.parts)))
        self._stream = open(self.parts[-1], "wb")  # noqa: SIM115
        self._room = self.part_bytes


def write_parts(files: list[Path], folder: Path, part_bytes: int) -> list[Path]:
    """Pack ``files``, without their folders, into parts of at most ``part_bytes``; their paths.

    ``cat wheels.tar.* | tar -x`` brings the files back. Times and owners are left out, so that
    equal files give equal parts.
    """
    writer = PartWriter(folder, part_bytes)
    try:
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in files:
                archive.add(path, arcname=path.name, filter=_plain)
    finally:
        writer.close()
    return writer.parts


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member
