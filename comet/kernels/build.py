# SPDX-License-Identifier: Apache-2.0
"""Compile ``csrc/`` into one shared library with a plain C interface.

Needs nvcc and g++, no GPU and no torch. Beside the library, ``build.json`` says for which
architectures, by which compiler and from which sources it was made, and what each kernel uses.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from comet.errors import UserError
from comet.files import atomic_path, sha256_of, write_json, write_text
from comet.kernels.ptxas import KernelResources, kernel_resources, performance_warnings
from comet.kernels.toolchain import Toolchain, find_toolchain

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc"
LIBRARY_NAME = "libcomet_kernels.so"
INFO_NAME = "build.json"
ARCHITECTURES = {
    "80": "arch=compute_80,code=[sm_80,compute_80]",
    "90a": "arch=compute_90a,code=sm_90a",
}
# Folders whose kernels use instructions of one architecture only.
FOLDER_ARCHITECTURE = {"sm80": "80", "sm90": "90a"}
# Older assemblers serialise the wgmma of most sm_90a kernels (C7515), whatever the source does.
PIPELINING_NVCC = (12, 9)
FLAGS = (
    "-std=c++17",
    "-O3",
    "-Werror=all-warnings",
    "-Xptxas=-v",
    "-Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-fvisibility=hidden",
)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_ALLOWED_SPILLS = re.compile(r"^// comet-build: allow-spills (\d+)\b", re.MULTILINE)


@dataclass(frozen=True)
class Unit:
    """One source file to compile; ``name`` is its path within the source folder."""

    source: Path
    name: str
    command: tuple[str, ...]
    object: Path
    report: Path


def source_files(folder: Path = SOURCES) -> list[Path]:
    """Every file whose content decides the library, in a fixed order."""
    patterns = ("*.cu", "*.cuh", "*.h")
    return sorted(path for pattern in patterns for path in folder.rglob(pattern))


def source_hash(folder: Path = SOURCES) -> str:
    """SHA-256 over the paths and contents of all sources; names the code a library comes from."""
    digest = hashlib.sha256()
    for path in source_files(folder):
        digest.update(f"{path.relative_to(folder)}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()


def build(
    out_dir: Path | str,
    jobs: int | None = None,
    defines: Mapping[str, object] | None = None,
    archs: Sequence[str] = ("80", "90a"),
    sources: Path = SOURCES,
) -> dict:
    """Build ``out_dir/libcomet_kernels.so`` and ``out_dir/build.json``.

    Objects are kept in ``out_dir/objects`` under the hash of what they were made from, so that a
    second build compiles only what changed.

    Args:
        out_dir: folder of the library.
        jobs: compiler processes at a time; None for one a core.
        defines: preprocessor macros of a build variant, name to value.
        archs: architectures of ``ARCHITECTURES``, "90a" or "sm_90a".
        sources: folder of the .cu files, with the headers in ``include``.

    Returns:
        The content of build.json.

    Raises:
        UserError: no compiler, an unknown architecture, a compile error, or a kernel that spills
            registers or serialises its tensor-core instructions.
    """
    out_dir = Path(out_dir)
    archs = tuple(str(arch).removeprefix("sm_") for arch in archs)
    if not archs or set(archs) - set(ARCHITECTURES):
        raise UserError(
            f"kernel architectures {', '.join(archs) or '(none)'} are not supported; "
            f"choose from {', '.join(ARCHITECTURES)}"
        )
    toolchain = find_toolchain()
    macros = tuple(f"-D{name}={value}" for name, value in sorted((defines or {}).items()))
    units = _units(sources, out_dir / "objects", toolchain, archs, macros)
    reports = _compile_all(units, jobs or os.cpu_count() or 1)
    kernels = {unit.name: _checked(unit, reports[unit.name]) for unit in units}
    warnings = _speed_warnings(units, reports, toolchain)
    library = out_dir / LIBRARY_NAME
    _link(toolchain, units, library)
    info = {
        "architectures": list(archs),
        "nvcc": toolchain.version,
        "flags": [*FLAGS, *(f"-gencode={ARCHITECTURES[arch]}" for arch in archs)],
        "warnings": warnings,
        "defines": {name: str(value) for name, value in sorted((defines or {}).items())},
        "git_commit": _commit(sources),
        "source_sha256": source_hash(sources),
        "library": LIBRARY_NAME,
        "library_sha256": sha256_of(library),
        "kernels": {
            name: [kernel.as_dict() for kernel in found] for name, found in kernels.items() if found
        },
    }
    write_json(out_dir / INFO_NAME, info)
    return info


def _units(
    sources: Path,
    objects: Path,
    toolchain: Toolchain,
    archs: tuple[str, ...],
    macros: tuple[str, ...],
) -> list[Unit]:
    include = sources / "include"
    units = []
    for source in sorted(sources.rglob("*.cu")):
        place = source.relative_to(sources)
        targets = [a for a in archs if FOLDER_ARCHITECTURE.get(place.parts[0], a) == a]
        if not targets:
            continue
        flags = [*FLAGS, f"-I{include}", *macros, f"-ccbin={toolchain.cxx}"]
        flags += [f"-gencode={ARCHITECTURES[arch]}" for arch in targets]
        contents = [sha256_of(path) for path in _included(source, include)]
        key = "\n".join((*contents, toolchain.version, *flags))
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        base = objects / "-".join((*place.with_suffix("").parts, digest))
        command = (str(toolchain.nvcc), *flags, "-c", str(source))
        units.append(
            Unit(source, str(place), command, base.with_suffix(".o"), base.with_suffix(".txt"))
        )
    return units


def _included(source: Path, include: Path) -> list[Path]:
    """A source and every header of ours that it includes, directly or through another."""
    found, waiting = [], [source]
    while waiting:
        path = waiting.pop()
        found.append(path)
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            for header in (path.parent / name, include / name):
                if header.exists() and header.resolve() not in found + waiting:
                    waiting.append(header.resolve())
    return sorted(found)


def _compile_all(units: list[Unit], jobs: int) -> dict[str, str]:
    """Compile what has no object yet; returns the ptxas report of each unit.

    The first failure stops what has not started; nothing of the failed unit is kept.
    """
    missing = [unit for unit in units if not (unit.object.exists() and unit.report.exists())]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [pool.submit(_compile, unit) for unit in missing]
        finished = as_completed(futures)
        try:
            for future in tqdm(
                finished, "compile CUDA", len(futures), unit="file", file=sys.__stderr__
            ):
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return {unit.name: unit.report.read_text(encoding="utf-8") for unit in units}


def _compile(unit: Unit) -> None:
    with atomic_path(unit.object) as temporary:
        # nvcc takes the kind of output from the suffix
        output = temporary.with_suffix(".o")
        run = subprocess.run(
            [*unit.command, "-o", str(output)], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            output.unlink(missing_ok=True)
            print(run.stderr, file=sys.stderr)
            raise UserError(f"nvcc failed on {unit.name}: {_first_error(run.stderr)}")
        os.replace(output, temporary)
        write_text(unit.report, run.stdout + run.stderr)


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
    return (errors or lines or ["no message"])[0]


def _checked(unit: Unit, report: str) -> list[KernelResources]:
    """Kernels of a unit, refused when they spill more than is declared."""
    kernels = kernel_resources(report)
    declared = _ALLOWED_SPILLS.search(unit.source.read_text(encoding="utf-8"))
    allowed = int(declared[1]) if declared else 0
    for kernel in kernels:
        spilled = max(kernel.spill_stores, kernel.spill_loads)
        if spilled > allowed:
            raise UserError(
                f"{unit.name}: {kernel.name} on {kernel.architecture} spills {spilled} bytes "
                f"of registers, {allowed} are allowed; use fewer registers or declare "
                "'// comet-build: allow-spills BYTES' in the file"
            )
    return kernels


def _speed_warnings(units: list[Unit], reports: dict[str, str], toolchain: Toolchain) -> list[str]:
    """What the assembler says about lost speed; refused where this compiler could do better."""
    found = [(unit.name, performance_warnings(reports[unit.name])) for unit in units]
    slow = {name: lines for name, lines in found if lines}
    if not slow:
        return []
    first = next(iter(slow))
    if toolchain.release >= PIPELINING_NVCC:
        raise UserError(f"{first} loses speed: {slow[first][0]}")
    wanted = ".".join(map(str, PIPELINING_NVCC))
    told = (
        f"nvcc {toolchain.version} serialises {sum(map(len, slow.values()))} kernels of "
        f"{', '.join(slow)}: right, but slow; use nvcc {wanted} or newer on Hopper"
    )
    print(f"warning: {told}", file=sys.stderr)
    return [told]


def _link(toolchain: Toolchain, units: list[Unit], library: Path) -> None:
    with atomic_path(library) as temporary:
        command = [str(toolchain.nvcc), "-shared", "-cudart=static", f"-ccbin={toolchain.cxx}"]
        # The static runtime's symbols stay inside: torch brings its own.
        command += ["-Xlinker=--exclude-libs,ALL"]
        command += [f"-L{folder}" for folder in toolchain.library_dirs]
        command += [*(str(unit.object) for unit in units), "-o", str(temporary)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(run.stderr, file=sys.stderr)
            raise UserError(f"linking {library.name} failed: {_first_error(run.stderr)}")


def _commit(sources: Path) -> str | None:
    """Commit of the sources, with "-dirty" when they differ from it; None outside git."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("-dirty" if _git("status", "--porcelain", "--", str(sources)) else "")


def _git(*arguments: str) -> str | None:
    """Output of a git command in the repository, None where it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
