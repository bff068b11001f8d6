# SPDX-License-Identifier: Apache-2.0
"""What this machine can measure: GPU, driver, engines. Fast, because every workflow start asks."""

import re
from importlib import metadata

ENGINES = ("torch", "vllm", "tensorrt_llm", "flashinfer-python", "lm_eval")


def detect() -> dict:
    """GPU and engines found without starting CUDA and without importing an engine.

    Returns:
        ``gpu`` name of the first GPU or None, ``gpu_count``, ``gpu_memory_bytes``,
        ``compute_capability`` such as ``9.0`` or None, ``driver`` or None, ``gpu_missing`` why
        there is no GPU (None when there is one), ``engines`` installed version or None by name.
    """
    return _gpu() | {"engines": {name: _version(name) for name in ENGINES}}


def slug(name: str | None) -> str:
    """File-name form of a GPU name: ``NVIDIA H200`` becomes ``h200``; ``cpu`` without a GPU."""
    if not name:
        return "cpu"
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return words.removeprefix("nvidia-")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> dict:
    absent = {
        "gpu": None,
        "gpu_count": 0,
        "gpu_memory_bytes": 0,
        "compute_capability": None,
        "driver": None,
    }
    try:
        import pynvml
    except ImportError:
        return absent | {"gpu_missing": "package nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return absent | {"gpu_missing": f"no NVIDIA driver answers ({error})"}
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count == 0:
            return absent | {"gpu_missing": "the NVIDIA driver sees no GPU"}
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(device)
        return {
            "gpu": pynvml.nvmlDeviceGetName(device),
            "gpu_count": count,
            "gpu_memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(device).total),
            "compute_capability": ".".join(str(part) for part in capability),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "gpu_missing": None,
        }
    except pynvml.NVMLError as error:
        return absent | {"gpu_missing": f"the NVIDIA driver does not answer ({error})"}
    finally:
        pynvml.nvmlShutdown()
