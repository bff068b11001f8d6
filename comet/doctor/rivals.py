# SPDX-License-Identifier: Apache-2.0
"""Engines and kernel libraries that COMET is compared with, as far as they are found here."""

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from comet import hints

PLUGIN = "comet"
ASK_SECONDS = 20


def rival_states() -> dict[str, dict]:
    """Engine -> ``found``, its version or place, None where it is not; ``get``, or None.

    ``vllm`` serves, ``vllm-kernels`` are its compiled kernels alone; ``tensorrt-llm`` is the
    environment of its kernels, ``trtllm-bench`` its serving program.
    """
    return {
        "vllm": _state(_packaged("vllm", "COMET_VLLM_PYTHON") or _version("vllm"), hints.VLLM),
        "vllm-kernels": _state(_vllm_site(), hints.VLLM_KERNELS),
        "tensorrt-llm": _state(
            _packaged("tensorrt_llm", "COMET_TRTLLM_PYTHON"), hints.TENSORRT_LLM
        ),
        "trtllm-bench": _state(
            shutil.which(os.environ.get("COMET_TRTLLM_BENCH") or "trtllm-bench"),
            hints.TENSORRT_LLM_BENCH,
        ),
        "qserve": _state(None, hints.QSERVE),
    }


def rival_of(backend: str, kind: str) -> str | None:
    """The engine that a backend of a kind of record needs, None for comet and torch."""
    if backend == "qserve":
        return backend
    maker = backend.partition("-")[0]
    if kind == "serving":
        return {"vllm": "vllm", "trtllm": "trtllm-bench"}.get(maker)
    return {"vllm": "vllm-kernels", "trtllm": "tensorrt-llm"}.get(maker)


def plugin_disabled() -> str | None:
    """Why vLLM would not load comet's plugin where it is installed, or None."""
    names = os.environ.get("VLLM_PLUGINS")
    if names is None or PLUGIN in names.split(","):
        return None
    return f"VLLM_PLUGINS is {names!r}, so that vLLM does not load comet's plugin"


def _state(found: str | None, get: str) -> dict:
    return {"found": found, "get": None if found else get}


def _version(package: str) -> str | None:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


def _packaged(package: str, variable: str) -> str | None:
    """Version of a package in the environment whose Python a variable names."""
    python = os.environ.get(variable)
    if not python or not shutil.which(python):
        return None
    program = f"from importlib import metadata; print(metadata.version({package!r}))"
    try:
        run = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{package} {run.stdout.strip()}, {python}" if run.returncode == 0 else None


def _vllm_site() -> str | None:
    site = os.environ.get("COMET_VLLM_SITE")
    return site if site and any(Path(site, "vllm").glob("_C*.so")) else None
