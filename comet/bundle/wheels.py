# SPDX-License-Identifier: Apache-2.0
"""Wheels of pinned requirements and of what they depend on, for another machine."""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from comet.bundle.target import Target
from comet.data.wheel import NO_SPACE
from comet.errors import UserError
from comet.files import sha256_of


def collect(requirements: Path, folder: Path, target: Target) -> None:
    """Download the wheel of each pin into ``folder``, then of what they need besides.

    A package that is published as source only is built here, and taken if the result runs on any
    machine.

    Raises:
        UserError: see ``comet.bundle.bundle``.
    """
    wanted = read_pins(requirements)
    known = set()
    while wanted:
        known |= {canonicalize_name(requirement.name) for requirement in wanted}
        _download(wanted, folder, target)
        for source in sorted([*folder.glob("*.tar.gz"), *folder.glob("*.zip")]):
            _build(source, folder)
        wanted = _missing(folder, known, target)


def read_pins(path: Path) -> list[Requirement]:
    """Pins of a requirements file; the project itself (``-e .``) is left out.

    Raises:
        UserError: no such file, or a line that is no exact pin.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; name it with --requirements"
        ) from error
    pins = []
    for number, line in enumerate(lines, 1):
        text = line.split("#")[0].strip()
        if not text or text.startswith("-e"):
            continue
        try:
            pins.append(Requirement(text))
        except InvalidRequirement as error:
            raise UserError(f"{path}:{number} is no requirement: {text}") from error
        if not re.fullmatch(r"==[^*]+", str(pins[-1].specifier)):
            raise UserError(f"{path}:{number} is no exact pin: {text}; write name==version")
    return pins


def locked(wheels: list[Path]) -> str:
    """Requirements with hashes, by which pip checks each wheel when it installs."""
    lines = []
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        lines.append(f"{name}=={version} --hash=sha256:{sha256_of(wheel)}\n")
    return "".join(lines)


def _pip(command: list[str], what: str) -> None:
    base = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    done = subprocess.run([*base, *command], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if any(sign in done.stderr for sign in NO_SPACE):
        raise UserError(f"cannot download {what}: no space left on device; free space, run again")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or done.stderr.splitlines() or ["pip said nothing"])[-1]
    raise UserError(f"cannot download {what}: {reason.removeprefix('ERROR: ')}")


def _download(wanted: list[Requirement], folder: Path, target: Target) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        listed = Path(temporary, "requirements.txt")
        lines = [f"{requirement.name}{requirement.specifier}\n" for requirement in wanted]
        listed.write_text("".join(lines), encoding="utf-8")
        options = ["--no-deps", "--dest", str(folder), *target.pip_options()]
        what = f"{len(wanted)} packages for Python {target.python}"
        _pip(["download", *options, "-r", str(listed)], what)


def _build(source: Path, folder: Path) -> None:
    before = set(folder.glob("*.whl"))
    _pip(["wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], source.name)
    source.unlink()
    (built,) = set(folder.glob("*.whl")) - before
    if not built.name.endswith("-none-any.whl"):
        raise UserError(
            f"{source.name} is published as source and is no pure Python: it cannot be built for "
            "another machine; pin a version that has a wheel"
        )


def _missing(folder: Path, known: set[str], target: Target) -> list[Requirement]:
    """What the wheels in ``folder`` need on the target and nobody has named yet."""
    missing = {}
    for requirement in _needs(folder, target):
        name = canonicalize_name(requirement.name)
        if name not in known:
            specifier = missing[name].specifier & requirement.specifier if name in missing else None
            missing[name] = requirement
            if specifier is not None:
                missing[name].specifier = specifier
    return list(missing.values())


def _needs(folder: Path, target: Target) -> list[Requirement]:
    """Requirements of every wheel, extras that other wheels ask for included."""
    declared = {}
    for wheel in folder.glob("*.whl"):
        name, _, _, _ = parse_wheel_filename(wheel.name)
        declared[str(name)] = _requirements(wheel)
    active: list[Requirement] = []
    extras: dict[str, set[str]] = {}
    grown = True
    while grown:
        active = [
            requirement
            for name, requirements in declared.items()
            for requirement in requirements
            if _applies(requirement, extras.get(name, set()), target)
        ]
        grown = False
        for requirement in active:
            asked = extras.setdefault(canonicalize_name(requirement.name), set())
            grown |= not requirement.extras <= asked
            asked |= requirement.extras
    return active


def _applies(requirement: Requirement, extras: set[str], target: Target) -> bool:
    if requirement.marker is None:
        return True
    values = target.markers()
    return any(requirement.marker.evaluate(values | {"extra": extra}) for extra in {"", *extras})


def _requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
        raw, _ = parse_email(archive.read(path))
    return [Requirement(text) for text in raw.get("requires_dist", [])]
