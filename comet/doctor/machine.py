# SPDX-License-Identifier: Apache-2.0
"""Facts of this machine, found in a second or two: nothing is imported, started or downloaded."""

import importlib.util
import os
import platform
import re
import shutil
import tomllib
from importlib import metadata
from pathlib import Path

from comet.errors import UserError
from comet.kernels.toolchain import find_toolchain
from comet.measurements import REPOSITORY
from comet.speed import profile_ncu
from comet.speed.devices import foreign_processes, nvml_session, usable_gpus

GIB = 2**30
# First driver of each CUDA release; within one, newer programs run on older drivers.
DRIVERS = {11: 450, 12: 525, 13: 580}
REQUIREMENTS = {12: "requirements-cuda12.txt", 13: "requirements.txt"}
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CAP_SYS_ADMIN = 21


def machine_facts(folder: Path) -> dict:
    """Everything that the targets depend on, as plain JSON types.

    Args:
        folder: where results go; the free space of its disk counts.
    """
    return {
        "gpus": [],
        "gpu_missing": None,
        "driver": None,
        **_gpus(),
        **_torch(),
        "packages_missing": _packages_missing(),
        **_compilers(),
        "counters": _counters(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(_memory() / GIB, 1),
        "disk_free_gib": round(shutil.disk_usage(_existing(folder)).free / GIB, 1),
    }


def requirements_for(driver: str | None) -> str:
    """The requirements file whose torch runs on a driver such as ``535.104``."""
    release = 12 if driver and _major(driver) < DRIVERS[13] else 13
    return REQUIREMENTS[release]


def driver_for(cuda: str) -> int:
    """The oldest driver on which a CUDA version such as ``13.0`` runs."""
    return DRIVERS.get(_major(cuda), max(DRIVERS.values()))


def runs_on(cuda: str, driver: str) -> bool:
    """Whether a program of a CUDA version runs on a driver."""
    return _major(driver) >= driver_for(cuda)


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _gpus() -> dict:
    try:
        with nvml_session() as module:
            listed = [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.name,
                    "memory_gib": round(gpu.memory_bytes / GIB, 1),
                    "compute_capability": gpu.compute_capability,
                    "used_by": [str(row) for row in foreign_processes(module, gpu)],
                }
                for gpu in usable_gpus(module)
            ]
            return {"gpus": listed, "driver": module.nvmlSystemGetDriverVersion()}
    except UserError as missing:
        return {"gpu_missing": str(missing)}


def _torch() -> dict:
    """Versions that torch's own file names, because importing it takes seconds."""
    absent = {"torch": None, "torch_cuda": None}
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return absent
    path = Path(found.origin).with_name("version.py")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return absent
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)
    return {"torch": version and version[1], "torch_cuda": cuda and cuda[1]}


def _packages_missing() -> list[str]:
    """Required packages that this Python does not have, but for those of a cluster."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    names = [re.split(r"[\[<>=~! ]", row)[0] for row in project["project"]["dependencies"]]
    missing = []
    for name in names:
        if "executor-plugin" in name:
            continue
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def _compilers() -> dict:
    try:
        toolchain = find_toolchain()
    except UserError as error:
        cxx = shutil.which(os.environ.get("CXX", "g++"))
        return {"cxx": cxx, "nvcc": None, "nvcc_version": None, "compiler_missing": str(error)}
    return {
        "cxx": str(toolchain.cxx),
        "nvcc": str(toolchain.nvcc),
        "nvcc_version": toolchain.version,
        "compiler_missing": None,
    }


def _counters() -> dict:
    """Nsight Compute, and whether the driver lets this user read hardware counters.

    ``permitted`` is None where there is no driver.
    """
    return {"ncu": profile_ncu.installed(), "permitted": _permitted()}


def _permitted() -> bool | None:
    try:
        parameters = DRIVER_PARAMETERS.read_text(encoding="utf-8")
    except OSError:
        return None
    restricted = re.search(r"^RmProfilingAdminOnly: (\d+)", parameters, re.MULTILINE)
    if restricted and restricted[1] == "0":
        return True
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", STATUS.read_text(), re.MULTILINE)
    return bool(effective and int(effective[1], 16) >> CAP_SYS_ADMIN & 1)


def _memory() -> int:
    """Bytes of memory for this process: the machine's, or the limit of its control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):
        return total


def _existing(folder: Path) -> Path:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place
