# SPDX-License-Identifier: Apache-2.0
"""GPUs of this machine as NVML lists them, and which of them ``CUDA_VISIBLE_DEVICES`` leaves.

CUDA is not started and torch is not imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from comet.errors import UserError

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
# What an idle device holds without any process stays far below this.
UNSEEN_BYTES = 2**30
MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of it.

    Attributes:
        index: number of the physical GPU in the order of the PCI bus, among those that this
            process may use.
        uuid: ``GPU-...`` or ``MIG-...``.
        name: such as ``NVIDIA A100-SXM4-80GB``.
        memory_bytes: its size.
        compute_capability: such as ``8.0``.
        other_names: further names of a MIG instance.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: str
    other_names: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"

    def variables(self) -> dict[str, str]:
        """Environment in which CUDA sees this GPU alone.

        A number where there is one, because vLLM (up to 0.24 at least) takes no UUID.
        """
        name = self.uuid if self.uuid.startswith("MIG-") else str(self.index)
        return {VISIBLE: name, ORDER: "PCI_BUS_ID"}


@dataclass(frozen=True)
class Process:
    """A process with a context on a GPU; ``pid`` None stands for all that are hidden from here."""

    pid: int | None
    command: str | None
    memory_bytes: int | None

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.1f} GiB"
        if self.pid is None:
            return f"processes that are not visible from here, {size}"
        words = self.command or "of another user or container"
        return f"pid {self.pid} ({', '.join(word for word in (words, size) if word)})"


@contextmanager
def nvml_session() -> Iterator:
    """The NVML module, initialised.

    Raises:
        UserError: the package or the driver is missing.
    """
    try:
        import pynvml
    except ImportError:
        raise UserError("package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UserError(f"no NVIDIA driver answers ({error})") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UserError(f"the NVIDIA driver does not answer ({error})") from None
    finally:
        pynvml.nvmlShutdown()


def visible_gpus(module) -> list[Gpu]:
    """GPUs and MIG instances that CUDA may use, in the order of ``CUDA_VISIBLE_DEVICES``.

    Args:
        module: NVML, initialised.

    Raises:
        UserError: there is none, or the variable is ambiguous.
    """
    handles = _handles(module)
    listed = [gpu for index, handle in enumerate(handles) for gpu in _list(module, index, handle)]
    if not listed:
        raise UserError("the NVIDIA driver sees no GPU")
    setting = os.environ.get(VISIBLE)
    if setting is None:
        return listed
    chosen = _chosen(setting, listed)
    if not chosen:
        raise UserError(f"{VISIBLE} is {setting!r}, which names no GPU of this machine")
    return chosen


def usable_gpus(module) -> list[Gpu]:
    """The visible GPUs that are like the one with the most memory: results of a run name one GPU.

    Raises:
        UserError: as ``visible_gpus``.
    """
    gpus = visible_gpus(module)
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes)
    return [gpu for gpu in gpus if gpu.name == largest.name]


def handle_of(module, gpu: Gpu):
    """NVML's handle of a GPU or MIG instance."""
    return module.nvmlDeviceGetHandleByUUID(gpu.uuid)


def foreign_processes(module, gpu: Gpu) -> list[Process]:
    """Processes that compute on a GPU, except this one and the server of MPS.

    Where a container hides them all, what they hold in memory tells that they are there.
    """
    handle = handle_of(module, gpu)
    found = {}
    for query in (
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    ):
        try:
            found |= {row.pid: row.usedGpuMemory for row in getattr(module, query)(handle)}
        except module.NVMLError:
            continue
    if os.getpid() in found:
        del found[os.getpid()]
    elif not found and (used := module.nvmlDeviceGetMemoryInfo(handle).used) > UNSEEN_BYTES:
        return [Process(None, None, int(used))]
    processes = [Process(pid, command_of(pid), memory) for pid, memory in sorted(found.items())]
    return [process for process in processes if MPS_SERVER not in (process.command or "")]


def command_of(pid: int) -> str | None:
    """Command line of a process, shortened; None where it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    words = raw.replace(b"\0", b" ").decode(errors="replace").strip()
    return words if len(words) <= 60 else f"{words[:57]}..."


def _handles(module) -> list:
    """Physical GPUs that this process may open; a scheduler may keep others from it."""
    handles = []
    for index in range(module.nvmlDeviceGetCount()):
        try:
            handles.append(module.nvmlDeviceGetHandleByIndex(index))
        except module.NVMLError:
            continue
    return handles


def _list(module, index: int, handle) -> list[Gpu]:
    """A physical GPU, or its MIG instances where MIG is on."""
    capability = ".".join(map(str, module.nvmlDeviceGetCudaComputeCapability(handle)))

    def describe(device, *names: str) -> Gpu:
        return Gpu(
            index,
            module.nvmlDeviceGetUUID(device),
            module.nvmlDeviceGetName(device),
            int(module.nvmlDeviceGetMemoryInfo(device).total),
            capability,
            names,
        )

    try:
        partitioned = module.nvmlDeviceGetMigMode(handle)[0] == module.NVML_DEVICE_MIG_ENABLE
    except module.NVMLError:
        partitioned = False
    if not partitioned:
        return [describe(handle)]
    instances, parent = [], module.nvmlDeviceGetUUID(handle)
    for number in range(module.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = module.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except module.NVMLError:
            continue
        ids = (
            module.nvmlDeviceGetGpuInstanceId(device),
            module.nvmlDeviceGetComputeInstanceId(device),
        )
        instances.append(describe(device, f"MIG-{parent}/{ids[0]}/{ids[1]}"))
    return instances


def _chosen(setting: str, listed: list[Gpu]) -> list[Gpu]:
    """As CUDA reads the variable: everything from the first word that names no GPU is ignored."""
    chosen: list[Gpu] = []
    for word in setting.split(","):
        gpu = _named(word.strip(), listed)
        if gpu is None:
            break
        if gpu not in chosen:
            chosen.append(gpu)
    return chosen


def _named(word: str, listed: list[Gpu]) -> Gpu | None:
    if word.isdecimal():
        unlike = len({gpu.name.split(" MIG ")[0] for gpu in listed}) > 1
        if unlike and os.environ.get(ORDER) != "PCI_BUS_ID":
            raise UserError(
                f"{VISIBLE} numbers the GPUs of a machine with unlike ones, which CUDA orders by "
                f"speed; set {ORDER}=PCI_BUS_ID too, or give UUIDs (nvidia-smi -L)"
            )
        return next((gpu for gpu in listed if gpu.index == int(word)), None)
    if not word.startswith(("GPU-", "MIG-")):
        return None
    matches = [
        gpu for gpu in listed if any(name.startswith(word) for name in (gpu.uuid, *gpu.other_names))
    ]
    return matches[0] if len(matches) == 1 else None
