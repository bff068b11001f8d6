# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and which targets run on it or are skipped, with the reason."""

import os
import platform
import shutil
from pathlib import Path

from comet.errors import UserError
from comet.kernels.toolchain import find_toolchain
from comet.speed import capability

GIB = 2**30
# Targets that need nothing but a processor; the published figures are drawn anywhere.
CPU_TARGETS = ("quantize", "accuracy", "table1", "kv4_loss", "fig3", "fig4", "precision_map")
PUBLISHED_TARGETS = ("table2", "fig10", "fig11", "fig12", "fig14", "fig15")
GPU_TARGETS = ("gemm (measured part of fig9 and fig13)", "profile, sm_utilisation")


def examine(folder: Path | str = ".") -> dict:
    """Facts of this machine and the state of each target.

    Args:
        folder: where results would go; its disk is looked at.

    Returns:
        ``machine`` (facts by name), ``warnings`` (lines), ``targets`` (name, runs, why).
    """
    found = capability.detect()
    compilers, problem = _compilers()
    torch = _torch()
    machine = {
        "gpu": found["gpu"],
        "gpu_memory_gib": round(found["gpu_memory_bytes"] / GIB, 1),
        "compute_capability": found["compute_capability"],
        "driver": found["driver"],
        "gpu_missing": found["gpu_missing"],
        **compilers,
        **torch,
        "engines": found["engines"],
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "disk_free_gib": round(shutil.disk_usage(folder).free / GIB, 1),
    }
    return {
        "machine": machine,
        "warnings": _warnings(machine, problem),
        "targets": _targets(machine, problem),
    }


def as_text(report: dict) -> str:
    """The report as lines for a terminal."""
    lines = [f"{name:20} {_word(value)}" for name, value in report["machine"].items()]
    lines += [f"warning: {line}" for line in report["warnings"]]
    lines += ["", f"{'target':40} state"]
    for target in report["targets"]:
        state = "runs" if target["runs"] else "skipped"
        lines.append(f"{target['name']:40} {state}{': ' if target['why'] else ''}{target['why']}")
    return "\n".join(lines)


def _word(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_word(item)}" for name, item in value.items())
    return "none" if value is None else str(value)


def _compilers() -> tuple[dict, str | None]:
    try:
        toolchain = find_toolchain()
    except UserError as error:
        return {"cxx": shutil.which("g++"), "nvcc": None, "nvcc_version": None}, str(error)
    return {
        "cxx": str(toolchain.cxx),
        "nvcc": str(toolchain.nvcc),
        "nvcc_version": toolchain.version,
    }, None


def _torch() -> dict:
    try:
        import torch
    except ImportError:
        return {"torch": None, "torch_cuda": None}
    return {"torch": torch.__version__, "torch_cuda": torch.version.cuda}


def _warnings(machine: dict, problem: str | None) -> list[str]:
    lines = []
    if machine["torch"] is None:
        lines.append("torch is not installed; install the package's requirements")
    elif machine["gpu"] and machine["torch_cuda"] is None:
        lines.append(
            "there is a GPU, but this torch has no CUDA; install a CUDA build of torch to use it"
        )
    if problem:
        lines.append(problem)
    if machine["disk_free_gib"] < 5:
        lines.append("less than 5 GiB of disk are free; the default run needs about 3")
    return lines


def _targets(machine: dict, problem: str | None) -> list[dict]:
    torch_missing = "torch is not installed" if machine["torch"] is None else ""
    no_gpu = machine["gpu_missing"] or ""
    if not no_gpu and machine["torch_cuda"] is None:
        no_gpu = "this torch has no CUDA"
    rows = [(name, torch_missing) for name in CPU_TARGETS]
    rows += [("kernels", problem or "")]
    rows += [(name, no_gpu) for name in GPU_TARGETS]
    targets = [{"name": name, "runs": not why, "why": why} for name, why in rows]
    for name in PUBLISHED_TARGETS:
        targets.append({"name": name, "runs": True, "why": "published numbers only"})
    return targets
