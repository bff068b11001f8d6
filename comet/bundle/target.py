# SPDX-License-Identifier: Apache-2.0
"""The machine that wheels are for: its Python, processor and C library."""

import re
from dataclasses import dataclass

from comet.errors import UserError

# Older names of manylinux tags, by the glibc they stand for.
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Target:
    """A Linux machine.

    Attributes:
        python: its Python, such as ``3.12``.
        glibc: its C library as ``ldd --version`` says, such as ``2.28``; older wheels run too.
        machine: its processor as ``uname -m`` says.
    """

    python: str
    glibc: str = "2.28"
    machine: str = "x86_64"

    def __post_init__(self) -> None:
        for name, value, form in (
            ("--python", self.python, r"3\.\d+"),
            ("--glibc", self.glibc, r"2\.\d+"),
            ("--machine", self.machine, r"x86_64|aarch64"),
        ):
            if not re.fullmatch(form, value):
                raise UserError(f"{name} is {value!r}; write it like {form}".replace("\\", ""))

    def pip_options(self) -> list[str]:
        """Options that make pip choose wheels for this machine instead of its own."""
        minor = int(self.glibc.split(".")[1])
        tags = [f"manylinux_2_{number}" for number in range(minor, 4, -1)]
        tags += [LEGACY[number] for number in LEGACY if number <= minor]
        options = ["--implementation", "cp", "--python-version", self.python]
        for tag in (*tags, "linux"):
            options += ["--platform", f"{tag}_{self.machine}"]
        return options

    def markers(self) -> dict[str, str]:
        """Values of environment markers on this machine."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": "",
        }
