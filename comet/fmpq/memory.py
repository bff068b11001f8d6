# SPDX-License-Identifier: Apache-2.0
"""Peak memory of quantizing layer by layer: measured in a run, and projected for other shapes."""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from comet.fmpq.options import WEIGHT_ROUNDINGS
from comet.fmpq.weights import GPTQ_ROWS_AT_ONCE
from comet.measurements import Measurement
from comet.models.shapes import ModelShapes, shapes_of

MIB = 2**20
STORED_BYTES = 2
# A packed weight: half a byte of code, and 2 bytes of scale and zero point a group of 128.
PACKED_BYTES = 0.5 + 2 / 128
# Measured: packing and checking one linear weight of 4096 x 11008 takes 6 bytes a weight.
PACKING_BYTES = 6
# Measured for GPTQ: bytes for each element of the second moment of one input (three matrices in
# fp64 and three in fp32), and for each weight of the rows that are rounded together.
MOMENT_BYTES = 36
ROUNDED_BYTES = 20
# The statistics square a linear's input in float64, which takes two copies beside the input.
SQUARE_BYTES = 16


@dataclass(frozen=True)
class Target:
    """Where a projection is for: the type layers are computed in, and what was measured there.

    Attributes:
        dtype, dtype_bytes: of weights and hidden states in memory.
        stored_bytes: of a weight on disk, whose mapped pages count while it is read.
        constant: bytes that no phase explains: on a CPU the tokenized text and the allocator.
    """

    dtype: str
    dtype_bytes: int
    stored_bytes: int
    constant: int


# The constant of a CPU is of a run on two layers as wide as those of LLaMA-2-7B, rounded to the
# nearest. The allocator of a GPU counts tensors alone, which the phases hold.
TARGETS = {
    "cpu": Target("float32", 4, STORED_BYTES, 446 * MIB),
    "cuda": Target("bfloat16", 2, 0, 0),
}


class PeakMeter:
    """Memory and time from its making until ``stop``.

    On a CPU the peak is the high-water mark of the process's resident set, reset at the start
    where the kernel permits it; it includes pages of mapped files. On a GPU it is what the
    allocator of torch hands out.

    Attributes:
        base, peak: bytes before, and at most. ``peak`` is None until ``stop``.
        seconds: wall time.
        source: where the numbers come from.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.peak: int | None = None
        self.seconds: float | None = None
        if self.device.type == "cuda":
            self.source = "torch.cuda.max_memory_allocated"
            # Statistics cannot be reset before the allocator is there.
            torch.cuda.init()
            torch.cuda.reset_peak_memory_stats(self.device)
            self.base = torch.cuda.memory_allocated(self.device)
        else:
            self.source = _reset_high_water_mark()
            self.base = _resident("VmRSS")
        self._start = time.perf_counter()

    def stop(self) -> None:
        """Read the peak and the time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.peak = torch.cuda.max_memory_allocated(self.device)
        else:
            self.peak = _resident("VmHWM")
        self.seconds = time.perf_counter() - self._start


def _reset_high_water_mark() -> str:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return "high-water mark of the resident set since the process began; it cannot be reset"
    return "high-water mark of the resident set, reset before the model was opened"


def _resident(name: str) -> int:
    """Bytes of ``VmRSS`` or ``VmHWM``; the peak since the process began where there is no /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def run_records(
    meter: PeakMeter, layer_bytes: int, hidden_bytes: int, method: dict, **fields
) -> list[Measurement]:
    """Records ``peak_memory`` and ``quantize_time`` of one quantization.

    The sample of ``peak_memory`` is the peak above what was in use before the model was opened;
    the absolute peak stands in ``method``.

    Args:
        meter: stopped.
        layer_bytes: weights of the largest decoder layer in the type they are computed in.
        hidden_bytes: hidden states of all calibration windows.
        method: what both records say of the run.
        fields: the other fields of both records.
    """
    memory = {
        "what": "peak above what was in use before the model was opened",
        "source": meter.source,
        "absolute_peak_mib": meter.peak / MIB,
        "before_mib": meter.base / MIB,
        "largest_layer_mib": layer_bytes / MIB,
        "hidden_states_mib": hidden_bytes / MIB,
    }
    duration = {"what": "wall time from opening the model until the checkpoint is written"}
    return [
        Measurement(
            kind="quantize",
            backend="fmpq",
            metric="peak_memory",
            unit="MiB",
            samples=[(meter.peak - meter.base) / MIB],
            method=memory | method,
            **fields,
        ),
        Measurement(
            kind="quantize",
            backend="fmpq",
            metric="quantize_time",
            unit="s",
            samples=[meter.seconds],
            method=duration | method,
            **fields,
        ),
    ]


@dataclass(frozen=True)
class Projection:
    """Peak memory above the start of quantizing one shape, in bytes.

    Attributes:
        phases: what each phase needs besides the hidden states; the largest counts.
        hidden_states: of all calibration windows.
        constant: the rest, as measured.
    """

    phases: dict[str, float]
    hidden_states: int
    constant: int

    @property
    def peak(self) -> float:
        """Bytes."""
        return max(self.phases.values()) + self.hidden_states + self.constant


def project_peak(
    shapes: ModelShapes,
    windows: int,
    context: int,
    dtype_bytes: int,
    stored_bytes: int = STORED_BYTES,
    constant: int = 0,
    rounding: str = "gptq",
) -> Projection:
    """Project the peak of ``quantize_model`` from the shape of a model.

    Args:
        shapes: of the model.
        windows, context: number of calibration windows and their tokens.
        dtype_bytes: of the type that layers are computed in: 4 on a CPU, 2 on a GPU.
        stored_bytes: of the type on disk; mapped pages count while a tensor is read. 0 on a GPU.
        constant: bytes that are left to be measured.
        rounding: of weights, ``gptq`` or ``nearest`` (``comet.fmpq.options``).
    """
    layer = shapes.linear_weights // shapes.layers
    embedding = shapes.vocab * shapes.hidden
    # Gate and up are one product in the table, but are quantized one after the other.
    largest = shapes.hidden * max(shapes.intermediate, shapes.heads * shapes.head_dim)
    window = context * max(shapes.intermediate, shapes.hidden)
    tails = (windows * context // 1000 + 1) * 4 * (3 * shapes.hidden + shapes.intermediate)
    moments, packing = 0, largest * PACKING_BYTES
    if rounding == "gptq":
        moments = 4 * (3 * shapes.hidden**2 + shapes.intermediate**2)
        packing = max(_rounding_bytes(*sizes) for sizes in _linears(shapes))
    return Projection(
        phases={
            "embedding": embedding * (dtype_bytes + stored_bytes),
            "loading": layer * (dtype_bytes + stored_bytes),
            "running": layer * dtype_bytes
            + window * (dtype_bytes + SQUARE_BYTES)
            + tails
            + moments,
            "packing": layer * (dtype_bytes + PACKED_BYTES) + packing + tails + moments,
        },
        hidden_states=windows * context * shapes.hidden * dtype_bytes,
        constant=constant,
    )


def _linears(shapes: ModelShapes) -> list[tuple[int, int]]:
    """(N, K) of the two largest linears."""
    pair = (shapes.hidden, shapes.intermediate)
    return [pair, pair[::-1]]


def _rounding_bytes(n: int, k: int) -> int:
    return MOMENT_BYTES * k * k + ROUNDED_BYTES * min(n, GPTQ_ROWS_AT_ONCE) * k


def projected_records(names: list[str], windows: int, context: int, **fields) -> list[Measurement]:
    """Modelled ``peak_memory`` of the named shapes, for both roundings of weights.

    On a CPU layers are computed in float32, on a GPU in bfloat16.

    Args:
        names: models of the table of shapes.
        windows, context: number of calibration windows and their tokens.
        fields: provenance and environment of the records.
    """
    return [
        Measurement(
            kind="quantize",
            origin="modelled",
            case={
                "model": name,
                "layer": "all",
                "method": "fmpq",
                "device": device,
                "windows": windows,
                "context": context,
                "rounding": rounding,
            },
            metric="peak_memory",
            unit="MiB",
            backend="fmpq",
            samples=[projection.peak / MIB],
            method={
                "what": "peak above what was in use before the model was opened: the largest "
                "phase, the hidden states and a constant",
                "phases_mib": {key: size / MIB for key, size in projection.phases.items()},
                "hidden_states_mib": projection.hidden_states / MIB,
                "constant_mib": projection.constant / MIB,
                "dtype": target.dtype,
            },
            **fields,
        )
        for name in names
        for device, target in TARGETS.items()
        for rounding in WEIGHT_ROUNDINGS
        for projection in [
            project_peak(
                shapes_of(name),
                windows,
                context,
                target.dtype_bytes,
                target.stored_bytes,
                target.constant,
                rounding,
            )
        ]
    ]
