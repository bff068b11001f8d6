# SPDX-License-Identifier: Apache-2.0
"""GEMM implementations behind one interface: a shape in, calls on rotated weights out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

import torch

from comet.errors import UserError


class Unavailable(Exception):
    """This machine cannot run a backend; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class GemmShape:
    """Y [m, n] = X [m, k] W^T, with the share of INT4 activation blocks that W4Ax uses."""

    m: int
    n: int
    k: int
    int4_share: float

    @property
    def blocks(self) -> int:
        """Blocks of 128 along K."""
        return -(-self.k // 128)


@dataclass
class Workload:
    """What is timed.

    Attributes:
        calls: one call a weight copy; activations are shared.
        with_quantization: the same, 16-bit activations in; empty where it is not offered.
        details: what ran, for the record: plan, kernel, library version.
    """

    calls: list[Callable[[], object]]
    with_quantization: list[Callable[[], object]] = field(default_factory=list)
    details: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Backend:
    """A module of this package and its function (shape, device) -> Workload."""

    module: str
    function: str

    def load(self, shape: GemmShape, device: torch.device) -> Workload:
        """Make operands and calls.

        Raises:
            Unavailable: the library, the GPU or the shape is not there.
        """
        function = getattr(import_module(f"{__name__}.{self.module}"), self.function)
        return function(shape, device)


BACKENDS = {
    "comet-w4ax": Backend("comet", "w4ax"),
    "comet-w4a8": Backend("comet", "w4a8"),
    "cublas-bf16": Backend("cublas", "bf16"),
    "cublaslt-int8": Backend("cublas", "int8"),
    "torch-fp8": Backend("torch_fp8", "rowwise"),
    "vllm-cutlass-int8": Backend("vllm_kernels", "cutlass_int8"),
    "vllm-cutlass-fp8": Backend("vllm_kernels", "cutlass_fp8"),
    "vllm-cutlass-w4a8": Backend("vllm_kernels", "cutlass_w4a8"),
    "vllm-machete-w4a16": Backend("vllm_kernels", "machete_w4a16"),
    "vllm-marlin-w4a16": Backend("vllm_kernels", "marlin_w4a16"),
    "vllm-marlin-w4a8": Backend("vllm_kernels", "marlin_w4a8"),
    "trtllm-w4a16": Backend("tensorrt_llm", "missing"),
    "trtllm-w8a8": Backend("tensorrt_llm", "missing"),
}


def backend_of(name: str) -> Backend:
    """The backend of this name.

    Raises:
        UserError: there is none.
    """
    if name not in BACKENDS:
        raise UserError(f"GEMM backend {name!r} is unknown; use one of {', '.join(BACKENDS)}")
    return BACKENDS[name]
