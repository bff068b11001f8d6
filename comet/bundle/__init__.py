# SPDX-License-Identifier: Apache-2.0
"""Pinned wheels for machines without a network: collected, checked, cut into parts, installed.

A bundle is a folder of parts of one tar archive, their checksums, and ``install.sh``, which needs
only a shell, tar and Python on the machine it is carried to.
"""

import shutil
from pathlib import Path

from comet.bundle.parts import write_parts
from comet.bundle.target import Target
from comet.bundle.wheels import collect, locked
from comet.errors import UserError
from comet.files import atomic_path, sha256_of, write_text

INSTALLER = Path(__file__).with_name("install.sh")
LOCK = "requirements.lock"
SUMS = "SHA256SUMS"


def bundle(requirements: Path, out: Path, target: Target, part_bytes: int) -> dict:
    """Write the bundle folder ``out``; it appears when it is whole.

    Args:
        requirements: file of exact pins; what they depend on without a pin is added.
        out: folder of the bundle; an earlier bundle there is replaced.
        target: the machine that the wheels are for.
        part_bytes: largest size of a part in bytes.

    Returns:
        ``wheels`` their number, ``parts`` their number, ``bytes`` of all parts.

    Raises:
        UserError: a pin has no wheel for the target, no network, no space, or a folder in the way.
    """
    if part_bytes < 1:
        raise UserError("the size of a part has to be positive; give --part-size in MB")
    if out.exists() and any(out.iterdir()) and not (out / SUMS).exists():
        raise UserError(f"{out} holds something that is no bundle; name another folder with --out")
    with atomic_path(out) as folder:
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        collect(requirements, wheels, target)
        found = sorted(wheels.glob("*.whl"))
        write_text(wheels / LOCK, locked(found))
        parts = write_parts([wheels / LOCK, *found], folder, part_bytes)
        shutil.rmtree(wheels)
        shutil.copy2(INSTALLER, folder / INSTALLER.name)
        sums = [f"{sha256_of(part)}  {part.name}\n" for part in parts]
        write_text(folder / SUMS, "".join(sums))
        size = sum(part.stat().st_size for part in parts)
    return {"wheels": len(found), "parts": len(parts), "bytes": size}
