# SPDX-License-Identifier: Apache-2.0
"""Calls into the library's sm_80 W4Ax kernels: argument structs, instances, workspaces."""

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from comet.errors import UserError
from comet.kernels.layout_sm80 import tile_rows
from comet.kernels.library import Library, load_for
from comet.schedule.stream_k import StreamK, run_count

DTYPES = (torch.float16, torch.bfloat16)


class W4axSm80Args(ctypes.Structure):
    """Mirror of ``CometW4axSm80Args`` in csrc/include/comet/w4ax_sm80.h."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        *(
            (name, ctypes.c_int32)
            for name in (
                "dtype",
                "tokens",
                "channels",
                "int4_blocks",
                "int8_blocks",
                "instance",
                "grid",
                "interleaved",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "activations",
                "multiples",
                "scales",
                "weights",
                "channel_scale",
                "bias",
                "out",
                "partials",
                "counters",
            )
        ),
    )


class _Instance(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        *(
            (name, ctypes.c_int32)
            for name in (
                "tokens",
                "channels",
                "residency",
                "stages",
                "interleaved",
                "partial_bytes",
            )
        ),
    )


@dataclass(frozen=True)
class Instance:
    """A compiled kernel.

    Attributes:
        index: in the library.
        name: for example "T64".
        tokens, channels: of the output tile.
        residency: thread blocks an SM.
        stages: depth of its pipeline.
        interleaved: order of the weight codes that it reads.
        partial_bytes: workspace of a thread block.
    """

    index: int
    name: str
    tokens: int
    channels: int
    residency: int
    stages: int
    interleaved: bool
    partial_bytes: int


@cache
def instances(library: Library) -> list[Instance]:
    """Kernel instances of the library, by the tokens of their tiles."""
    count = library.function("comet_w4ax_sm80_instances")()
    describe = library.function("comet_w4ax_sm80_instance", ctypes.c_int, ctypes.POINTER(_Instance))
    found = []
    for index in range(count):
        raw = _Instance()
        library.check(describe(index, ctypes.byref(raw)), "comet_w4ax_sm80_instance")
        found.append(
            Instance(
                index,
                raw.name.decode(),
                raw.tokens,
                raw.channels,
                raw.residency,
                raw.stages,
                bool(raw.interleaved),
                raw.partial_bytes,
            )
        )
    return sorted(found, key=lambda instance: instance.tokens)


def plan(tokens: int, found: list[Instance]) -> Instance:
    """The smallest tile that holds all tokens, or the largest there is."""
    return next((i for i in found if i.tokens >= tokens), found[-1])


def work_of(instance: Instance, tokens: int, channels: int, int4: int, int8: int, sms: int):
    """How a GEMM is cut for a GPU of ``sms`` multiprocessors."""
    tiles = -(-tokens // instance.tokens) * tile_rows(channels)
    whole = StreamK(tiles, int4, int8, 1)
    return StreamK(tiles, int4, int8, run_count(whole.total_weight, sms, instance.residency))


def w4ax(
    operand: Tensor,
    scales: Tensor,
    multiples: Tensor,
    tiles: Tensor,
    channel_scale: Tensor,
    bias: Tensor | None,
    int4_blocks: int,
    interleaved: bool,
    out: Tensor,
) -> None:
    """Launch one GEMM on checked CUDA tensors; writes ``out`` [M, N].

    Raises:
        UserError: the library is missing, stale, not built for the device, or a build variant that
            reads weights in another order.
        RuntimeError: the launch failed.
    """
    library = load_for(out.device)
    instance = plan(out.shape[0], instances(library))
    if instance.interleaved != interleaved:
        raise UserError(
            f"weight has interleaved = {interleaved}; the library {library.path} was built for "
            f"interleaved = {instance.interleaved}"
        )
    launcher = library.function("comet_w4ax_sm80", ctypes.POINTER(W4axSm80Args), ctypes.c_void_p)
    sms = torch.cuda.get_device_properties(out.device).multi_processor_count
    int8_blocks = tiles.shape[1] - int4_blocks
    work = work_of(instance, *out.shape, int4_blocks, int8_blocks, sms)
    with torch.cuda.device(out.device):
        stream = torch.cuda.current_stream().cuda_stream
        partials = counters = None
        if work.tiles % work.runs:
            partials = out.new_empty(work.runs * instance.partial_bytes, dtype=torch.uint8)
            counters = _counters(out.device, stream, work.tiles)
        arguments = W4axSm80Args(
            size=ctypes.sizeof(W4axSm80Args),
            dtype=DTYPES.index(out.dtype),
            tokens=out.shape[0],
            channels=out.shape[1],
            int4_blocks=int4_blocks,
            int8_blocks=int8_blocks,
            instance=instance.index,
            grid=work.runs,
            interleaved=interleaved,
            activations=operand.data_ptr(),
            multiples=multiples.data_ptr() or None,
            scales=scales.data_ptr(),
            weights=tiles.data_ptr(),
            channel_scale=channel_scale.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            partials=None if partials is None else partials.data_ptr(),
            counters=None if counters is None else counters.data_ptr(),
        )
        library.check(launcher(ctypes.byref(arguments), stream), "comet_w4ax_sm80")


_zeros: dict[tuple[torch.device, int], Tensor] = {}


def _counters(device: torch.device, stream: int, tiles: int) -> Tensor:
    """Zeros, one a tile. Kernels of a stream run one after another and leave them zero, so that
    they share them; a graph may replay on any stream and clears its own."""
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(tiles, dtype=torch.int32, device=device)
    kept = _zeros.get((device, stream))
    if kept is None or kept.numel() < tiles:
        kept = torch.zeros(max(tiles, 1024), dtype=torch.int32, device=device)
        _zeros[device, stream] = kept
    return kept
