# SPDX-License-Identifier: Apache-2.0
"""What this machine can measure: GPU, driver, engines. Fast, because every workflow start asks."""

import re
from importlib import metadata

from comet.errors import UserError
from comet.speed.devices import nvml_session, usable_gpus

ENGINES = ("torch", "vllm", "tensorrt_llm", "flashinfer-python", "lm_eval")


def detect() -> dict:
    """GPU and engines found without starting CUDA and without importing an engine.

    Returns:
        ``gpu`` name of the GPU that jobs use or None, ``gpu_memory_bytes``, ``compute_capability``
        such as ``9.0`` or None, ``driver`` or None, ``gpu_missing`` why there is no GPU (None when
        there is one), ``engines`` installed version or None by name. Not how many GPUs there are:
        results do not change with it, and what is not measured yet is told by these facts.
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
    try:
        with nvml_session() as module:
            gpu = usable_gpus(module)[0]
            return {
                "gpu": gpu.name,
                "gpu_memory_bytes": gpu.memory_bytes,
                "compute_capability": gpu.compute_capability,
                "driver": module.nvmlSystemGetDriverVersion(),
                "gpu_missing": None,
            }
    except UserError as missing:
        return {
            "gpu": None,
            "gpu_memory_bytes": 0,
            "compute_capability": None,
            "driver": None,
            "gpu_missing": str(missing),
        }
