# SPDX-License-Identifier: Apache-2.0
"""Engines and kernel libraries that COMET is compared with, as far as they are found here."""

import os
import shutil
from importlib import metadata
from pathlib import Path

from comet import hints

SITE = "COMET_VLLM_SITE"
TENSORRT_LLM_PYTHON = "COMET_TRTLLM_PYTHON"
PLUGIN_GROUP, PLUGIN = "vllm.general_plugins", "comet"


def rival_states() -> dict[str, dict]:
    """Engine -> ``version`` or where it is, None where it is not; ``get``, or None."""
    return {
        "vllm": _state(_installed("vllm"), "pip install vllm, in an environment of its own"),
        "vllm-kernels": _state(_vllm_site(), hints.VLLM_KERNELS),
        "tensorrt-llm": _state(_tensorrt_llm(), hints.TENSORRT_LLM),
    }


def rival_of(backend: str) -> str | None:
    """The engine that a backend of the configuration needs, None for comet and torch."""
    if backend.startswith("trtllm-"):
        return "tensorrt-llm"
    return "vllm-kernels" if backend.startswith("vllm-") else None


def plugin_disabled() -> str | None:
    """Why vLLM would not load comet's plugin although it is installed, or None."""
    names = os.environ.get("VLLM_PLUGINS")
    if names is None or PLUGIN in names.split(","):
        return None
    if PLUGIN not in {point.name for point in metadata.entry_points(group=PLUGIN_GROUP)}:
        return None
    return f"VLLM_PLUGINS is {names!r}, so vLLM does not load comet's plugin"


def _state(found: str | None, get: str) -> dict:
    return {"found": found, "get": None if found else get}


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _vllm_site() -> str | None:
    site = os.environ.get(SITE)
    return site if site and any(Path(site, "vllm").glob("_C*.so")) else None


def _tensorrt_llm() -> str | None:
    python = os.environ.get(TENSORRT_LLM_PYTHON)
    return python if python and shutil.which(python) else None
