# SPDX-License-Identifier: Apache-2.0
"""What ptxas says about each kernel: registers, spills, memory, and warnings that cost speed."""

import re
from dataclasses import asdict, dataclass

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
# C7508: setmaxnreg ignored. C7510 to C7518, C7520: wgmma serialised, for one reason or another.
# Either halves a kernel without failing it.
_PERFORMANCE = re.compile(r"^.*\(?C75(?:08|1[0-8]|20)\)?.*$", re.MULTILINE)


@dataclass
class KernelResources:
    """Resources of one kernel instance on one architecture.

    Attributes:
        name: mangled name.
        architecture: for example "sm_90a".
        registers: per thread.
        spill_stores, spill_loads, stack: bytes per thread.
        shared_memory: static bytes per thread block.
    """

    name: str
    architecture: str
    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared_memory: int = 0

    def as_dict(self) -> dict:
        """Plain values for build.json."""
        return asdict(self)


def kernel_resources(text: str) -> list[KernelResources]:
    """Read the output of ``ptxas -v``; device functions that are no kernels are left out."""
    kernels: list[KernelResources] = []
    current = None
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            kernels.append(KernelResources(match[1], match[2]))
        elif match := _PROPERTIES.search(line):
            current = kernels[-1] if kernels and kernels[-1].name == match[1] else None
        elif current and (match := _STACK.search(line)):
            current.stack, current.spill_stores, current.spill_loads = map(int, match.groups())
        elif kernels and (match := _USED.search(line)):
            kernels[-1].registers = int(match[1])
            shared = _SHARED.search(line)
            kernels[-1].shared_memory = int(shared[1]) if shared else 0
    return kernels


def performance_warnings(text: str) -> list[str]:
    """Lines that report serialised wgmma (C7510 and its kin) or an ignored setmaxnreg (C7508)."""
    return [line.strip() for line in _PERFORMANCE.findall(text)]
