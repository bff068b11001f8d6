# SPDX-License-Identifier: Apache-2.0
"""The GPU and its software, as every record of a GPU measurement names them."""

import torch

from comet.measurements import PACKAGES, environment
from comet.speed import capability
from comet.speed.lease import lease_facts


def device_environment(device: torch.device | str, packages: tuple[str, ...] = PACKAGES) -> dict:
    """``comet.measurements.environment`` of what was computed on ``device``, GPU or processor."""
    named, device = environment(packages), torch.device(device)
    if device.type != "cuda":
        return named
    return gpu_environment(device) | {"versions": named["versions"]}


def gpu_environment(device: torch.device) -> dict:
    """``comet.measurements.environment`` with the GPU, its driver, the engines and the lease."""
    properties = torch.cuda.get_device_properties(device)
    found = capability.detect()
    return environment() | {
        "device": properties.name,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": found["driver"],
        "cuda": torch.version.cuda,
        "engines": found["engines"],
        **lease_facts(),
    }
