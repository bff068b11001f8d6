# SPDX-License-Identifier: Apache-2.0
"""Find and load the CUDA library that ``comet.kernels.build`` made."""

import ctypes
import json
import os
from functools import cache
from pathlib import Path

import torch

from comet.errors import UserError
from comet.kernels.build import INFO_NAME, LIBRARY_NAME, ROOT, SOURCES, source_hash

INTERFACE_VERSION = 2
BUILD_HINT = "build it with: comet build"
ENVIRONMENT = "COMET_LIBRARY"


class Library:
    """The loaded shared library.

    Attributes:
        path: of the shared object.
        info: content of build.json.
    """

    def __init__(self, path: Path) -> None:
        """Load without touching a GPU.

        Raises:
            UserError: the library is missing, unreadable or of other sources than this package.
        """
        self.path = path
        self.info = _read_info(path)
        _check_sources(path, self.info)
        try:
            self._handle = ctypes.CDLL(str(path))
        except OSError as error:
            raise UserError(f"cannot load {path}: {error}; {BUILD_HINT}") from error
        version = self.function("comet_interface_version")()
        if version != INTERFACE_VERSION:
            raise UserError(
                f"{path} has interface version {version}, this package needs {INTERFACE_VERSION}; "
                f"{BUILD_HINT}"
            )

    @property
    def architectures(self) -> list[str]:
        """Architectures it was built for, for example ["80", "90a"]."""
        return self.info["architectures"]

    def function(self, name: str, *argument_types: type) -> ctypes._CFuncPtr:
        """A C function that returns a status.

        Raises:
            UserError: the build left it out.
        """
        try:
            function = getattr(self._handle, name)
        except AttributeError:
            raise UserError(
                f"{self.path} has no {name}: it was built for {', '.join(self.architectures)} "
                f"only; {BUILD_HINT}"
            ) from None
        function.restype = ctypes.c_int
        function.argtypes = list(argument_types)
        return function

    def error_string(self, status: int) -> str:
        """A status in words."""
        describe = self._handle.comet_error_string
        describe.restype = ctypes.c_char_p
        return describe(ctypes.c_int(status)).decode()

    def check(self, status: int, what: str) -> None:
        """Raise when a launcher refused or failed.

        Raises:
            RuntimeError: ``status`` is not zero.
        """
        if status:
            raise RuntimeError(f"{what} failed: {self.error_string(status)}")

    def check_device(self, device: torch.device) -> None:
        """Check that the library holds code that ``device`` runs.

        Raises:
            UserError: it does not; the message says which build is needed.
        """
        capability = torch.cuda.get_device_capability(device)
        if not _runs_on(tuple(self.architectures), capability):
            wanted = "90a" if capability == (9, 0) else "80"
            name = torch.cuda.get_device_name(device)
            raise UserError(
                f"{self.path} was built for {', '.join(self.architectures)} and does not run on "
                f"{name} (compute capability {capability[0]}.{capability[1]}); build it with "
                f"architecture {wanted}: comet build --arch {wanted}"
            )


def _runs_on(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """sm_90a code runs on 9.0 alone; compute_80 PTX runs on 8.0 and everything newer."""
    return (capability == (9, 0) and "90a" in architectures) or (
        capability >= (8, 0) and "80" in architectures
    )


def library_path() -> Path:
    """COMET_LIBRARY, or ``build/kernels`` beside the package."""
    return Path(os.environ.get(ENVIRONMENT) or ROOT / "build" / "kernels" / LIBRARY_NAME)


def load(path: Path | str | None = None) -> Library:
    """Load the library once a process; no GPU is needed.

    Args:
        path: the shared object; None for ``library_path()``.

    Raises:
        UserError: it is missing or stale; the message says what to run.
    """
    return _load(Path(path) if path is not None else library_path())


@cache
def _load(path: Path) -> Library:
    return Library(path)


def load_for(device: torch.device) -> Library:
    """The library, checked against the architecture of a CUDA device."""
    return _load_for(library_path(), device)


@cache
def _load_for(path: Path, device: torch.device) -> Library:
    library = load(path)
    library.check_device(device)
    return library


def _read_info(path: Path) -> dict:
    if not path.exists():
        raise UserError(f"the CUDA library {path} does not exist; {BUILD_HINT}")
    info = path.with_name(INFO_NAME)
    try:
        return json.loads(info.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{info} is missing or damaged ({error}); {BUILD_HINT}") from error


def _check_sources(path: Path, info: dict) -> None:
    """An installed package without csrc/ trusts its library; a clone compares."""
    if SOURCES.is_dir() and info.get("source_sha256") != source_hash():
        raise UserError(f"{path} was built from other sources than {SOURCES}; {BUILD_HINT}")
