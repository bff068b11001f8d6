# SPDX-License-Identifier: Apache-2.0
"""Where the CUDA compiler, the host compiler and the disassembler are."""

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from comet import hints
from comet.errors import UserError

MINIMUM_NVCC = (12, 4)
INSTALL_HINT = f"install the CUDA toolkit, or its pip wheels with: {hints.REQUIREMENTS}"


@dataclass(frozen=True)
class Toolchain:
    """What the build runs.

    Attributes:
        nvcc: the CUDA compiler.
        version: its version, for example "13.0.88".
        cxx: the host compiler.
        library_dirs: folders that hold the static CUDA runtime.
    """

    nvcc: Path
    version: str
    cxx: Path
    library_dirs: tuple[Path, ...]

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        return _release(self.version)


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = (int(part) for part in f"{version}.0".split("."))
    return major, minor


def wheel_root() -> Path | None:
    """Folder of the CUDA 13 pip wheels (bin, include, lib, nvvm), None where there is none."""
    for key in ("purelib", "platlib"):
        for root in sorted(Path(sysconfig.get_path(key)).glob("nvidia/cu*"), reverse=True):
            if (root / "bin" / "nvcc").exists():
                return root
    return None


def _candidates() -> list[Path]:
    """nvcc of CUDA_HOME, of PATH, of the pip wheels, in this order."""
    found = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            found.append(Path(home) / "bin" / "nvcc")
    if on_path := shutil.which("nvcc"):
        found.append(Path(on_path))
    if root := wheel_root():
        found.append(root / "bin" / "nvcc")
    return [path for path in found if path.exists()]


def _version(nvcc: Path) -> str:
    """Version that ``nvcc --version`` prints, "0" where it does not run."""
    try:
        run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return "0"
    match = re.search(r"V(\d+(?:\.\d+)+)", run.stdout)
    return match[1] if match else "0"


def _library_dirs(nvcc: Path) -> tuple[Path, ...]:
    """Folders near nvcc with libcudart_static.a; none if nvcc's own defaults must do."""
    root = nvcc.resolve().parent.parent
    places = (root / "lib64", root / "lib", root / "targets" / "x86_64-linux" / "lib")
    return tuple(place for place in places if (place / "libcudart_static.a").exists())


def find_toolchain() -> Toolchain:
    """Find nvcc 12.4 or newer and a C++ compiler.

    Raises:
        UserError: either is missing or too old.
    """
    cxx = shutil.which(os.environ.get("CXX", "g++"))
    if cxx is None:
        raise UserError(
            "no C++ compiler: g++ is not on PATH; install it (package 'g++' or 'gcc-c++') or name "
            "another in CXX"
        )
    candidates = _candidates()
    seen = []
    for nvcc in candidates:
        version = _version(nvcc)
        if _release(version) >= MINIMUM_NVCC:
            return Toolchain(nvcc, version, Path(cxx), _library_dirs(nvcc))
        seen.append(f"{nvcc} is version {version}")
    wanted = ".".join(map(str, MINIMUM_NVCC))
    if seen:
        raise UserError(f"no nvcc of version {wanted} or newer: {'; '.join(seen)}; {INSTALL_HINT}")
    raise UserError(f"no nvcc in CUDA_HOME, on PATH or among the pip packages; {INSTALL_HINT}")


def find_tool(name: str) -> Path | None:
    """A disassembler (``cuobjdump``, ``nvdisasm``) of the pip wheels or of PATH.

    The wheels come first: they are newer than the compiler, and older ones misread some images.
    """
    root = wheel_root()
    if root and (root / "bin" / name).exists():
        return root / "bin" / name
    for key in ("purelib", "platlib"):
        for path in sorted(Path(sysconfig.get_path(key)).glob(f"nvidia/*/bin/{name}")):
            return path
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None
