# SPDX-License-Identifier: Apache-2.0
"""Made-up machines for the doctor: what it looks at is replaced, its judgement is not."""

import copy

from comet import doctor

COMPILERS = {
    "cxx": "/usr/bin/g++",
    "nvcc": "/usr/local/cuda/bin/nvcc",
    "nvcc_version": "13.0.88",
    "compiler_missing": None,
}
LAPTOP = {
    "gpus": [],
    "gpu_missing": "no NVIDIA driver answers (NVML Shared Library Not Found)",
    "driver": None,
    "torch": "2.13.0+cpu",
    "torch_cuda": None,
    "packages_missing": [],
    **COMPILERS,
    "counters": {"ncu": None, "permitted": None},
    "python": "3.12.3",
    "cores": 8,
    "memory_gib": 15.5,
    "disk_free_gib": 200.0,
}
A100 = LAPTOP | {
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-a",
            "name": "NVIDIA A100-SXM4-80GB",
            "memory_gib": 80.0,
            "compute_capability": "8.0",
            "used_by": [],
        }
    ],
    "gpu_missing": None,
    "driver": "580.95.05",
    "torch": "2.13.0+cu130",
    "torch_cuda": "13.0",
    "counters": {"ncu": "/usr/local/cuda/bin/ncu", "permitted": True},
    "memory_gib": 1000.0,
    "disk_free_gib": 4000.0,
}


def gpu(**fields) -> dict:
    """An A100 with one GPU that differs in some facts."""
    machine = copy.deepcopy(A100)
    machine["gpus"][0] |= fields
    return machine


def diagnose(monkeypatch, facts: dict, tmp_path, **arguments) -> dict:
    """The doctor's report on a machine, without a network."""
    monkeypatch.setattr(doctor, "machine_facts", lambda folder: copy.deepcopy(facts))
    return doctor.examine(**{"network": False, "folder": tmp_path} | arguments)


def targets_of(report: dict) -> dict[str, dict]:
    return {row["name"]: row for row in report["targets"]}
