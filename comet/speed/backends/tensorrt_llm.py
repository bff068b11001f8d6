# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's GEMM kernels: only through its own environment."""

import torch

from comet.speed.backends import GemmShape, Unavailable, Workload


def missing(_shape: GemmShape, _device: torch.device) -> Workload:
    """Always unavailable: TensorRT-LLM pins another torch than this environment has."""
    raise Unavailable(
        "TensorRT-LLM's kernels are not loaded into this environment; measure them in theirs and "
        "add the records to results/<machine>/records/gemm"
    )
