# SPDX-License-Identifier: Apache-2.0
"""GEMM implementations behind one interface: a shape in, calls on rotated weights out."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib import import_module

import torch

from comet.errors import UserError


class Unavailable(Exception):
    """This machine cannot run a backend; the message says what is missing and how to get it."""


class Unsupported(Unavailable):
    """A backend does not take such a shape or mode, whatever is installed."""


@dataclass(frozen=True)
class GemmShape:
    """Y [m, n] = X [m, k] W^T and how W4Ax computes it; rivals read m, n and k alone.

    Attributes:
        int4_share: share of INT4 activation blocks.
        act_scale, weight_scale, zero_point, hadamard: see ``docs/contracts.md``.
        variant: name of a build variant (``comet.kernels.variants``).
        layer: name of the linear; tells what stands in front of it.
    """

    m: int
    n: int
    k: int
    int4_share: float
    act_scale: str = "token_block_multiple"
    weight_scale: str = "group_int"
    zero_point: bool = False
    hadamard: bool = False
    variant: str = "full"
    layer: str = ""

    @classmethod
    def of(cls, case: dict) -> "GemmShape":
        """The shape of a gemm case."""
        return cls(**{field.name: case[field.name] for field in fields(cls) if field.name in case})

    @property
    def blocks(self) -> int:
        """Blocks of 128 along K."""
        return -(-self.k // 128)


@dataclass
class Workload:
    """What is timed.

    Attributes:
        calls: the GEMM, quantized operands ready; one call a weight copy, activations are shared.
        besides: more that is timed, by metric; see ``comet.speed.backends.comet``.
        details: what ran, for the record: plan, kernel, library version.
    """

    calls: list[Callable[[], object]]
    besides: dict[str, list[Callable[[], object]]] = field(default_factory=dict)
    details: dict = field(default_factory=dict)


@dataclass
class MeasuredElsewhere:
    """What a backend measured in a process of its own.

    Attributes:
        samples: microseconds a call.
        method: how they were taken, for the record.
    """

    samples: list[float]
    method: dict

    @property
    def calls(self) -> list[Callable[[], object]]:
        """There are none here.

        Raises:
            Unavailable: always.
        """
        raise Unavailable("this backend runs in its own process, which cannot be watched from here")


@dataclass(frozen=True)
class Backend:
    """A module of this package and its function (shape, device) -> Workload."""

    module: str
    function: str

    def load(self, shape: GemmShape, device: torch.device) -> Workload | MeasuredElsewhere:
        """Make operands and calls.

        Raises:
            Unavailable: the library, the GPU or the shape is not there.
        """
        function = getattr(import_module(f"{__name__}.{self.module}"), self.function)
        return function(shape, device)

    def prepare(self, shapes: list[GemmShape], seed: int) -> None:
        """Tell the backend of all shapes that will be loaded, if it wants to know."""
        module = import_module(f"{__name__}.{self.module}")
        if hasattr(module, "prepare"):
            module.prepare(self.function, shapes, seed)


BACKENDS = {
    "comet-w4ax": Backend("comet", "w4ax"),
    "comet-w4a8": Backend("comet", "w4a8"),
    "comet-w4ax-sm80": Backend("comet_sm80", "w4ax"),
    "cublas-bf16": Backend("cublas", "bf16"),
    "cublaslt-int8": Backend("cublas", "int8"),
    "torch-fp8": Backend("torch_fp8", "rowwise"),
    "vllm-cutlass-int8": Backend("vllm_kernels", "cutlass_int8"),
    "vllm-cutlass-fp8": Backend("vllm_kernels", "cutlass_fp8"),
    "vllm-cutlass-w4a8": Backend("vllm_kernels", "cutlass_w4a8"),
    "vllm-machete-w4a16": Backend("vllm_kernels", "machete_w4a16"),
    "vllm-marlin-w4a16": Backend("vllm_kernels", "marlin_w4a16"),
    "vllm-marlin-w4a8": Backend("vllm_kernels", "marlin_w4a8"),
    "trtllm-w4a16": Backend("tensorrt_llm", "w4a16"),
    "trtllm-w8a8": Backend("tensorrt_llm", "w8a8"),
}


def backend_of(name: str) -> Backend:
    """The backend of this name.

    Raises:
        UserError: there is none.
    """
    if name not in BACKENDS:
        raise UserError(f"GEMM backend {name!r} is unknown; use one of {', '.join(BACKENDS)}")
    return BACKENDS[name]
