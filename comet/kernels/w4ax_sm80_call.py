# SPDX-License-Identifier: Apache-2.0
"""Calls into the library's sm_80 W4Ax kernels: argument structs, instances, workspaces."""

import ctypes
from ctypes import c_char_p, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from comet.errors import UserError
from comet.kernels.calls import SIZE, address, current_stream, described, fields, launch
from comet.kernels.checks import DTYPES
from comet.kernels.layout_sm80 import tile_rows
from comet.kernels.library import Library, load_for
from comet.schedule.stream_k import StreamK, run_count


class W4axSm80Args(ctypes.Structure):
    """Mirror of ``CometW4axSm80Args`` in csrc/include/comet/w4ax_sm80.h."""

    _fields_ = (
        SIZE,
        *fields(c_int32, "dtype", "tokens", "channels", "int4_blocks", "int8_blocks"),
        *fields(c_int32, "instance", "grid", "interleaved"),
        *fields(c_void_p, "activations", "multiples", "scales", "weights", "channel_scale"),
        *fields(c_void_p, "bias", "out", "partials", "counters"),
    )


class _Instance(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        *fields(c_int32, "tokens", "channels", "residency", "stages", "interleaved"),
        *fields(c_int32, "partial_bytes"),
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
    found = [
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
        for index, raw in enumerate(described(library, "comet_w4ax_sm80", _Instance))
    ]
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
    sms = torch.cuda.get_device_properties(out.device).multi_processor_count
    int8_blocks = tiles.shape[1] - int4_blocks
    work = work_of(instance, *out.shape, int4_blocks, int8_blocks, sms)
    partials = counters = None
    if work.tiles % work.runs:
        partials = out.new_empty(work.runs * instance.partial_bytes, dtype=torch.uint8)
        counters = _counters(out.device, current_stream(out.device), work.tiles)
    arguments = W4axSm80Args(
        dtype=DTYPES.index(out.dtype),
        tokens=out.shape[0],
        channels=out.shape[1],
        int4_blocks=int4_blocks,
        int8_blocks=int8_blocks,
        instance=instance.index,
        grid=work.runs,
        interleaved=interleaved,
        activations=address(operand),
        multiples=address(multiples),
        scales=address(scales),
        weights=address(tiles),
        channel_scale=address(channel_scale),
        bias=address(bias),
        out=address(out),
        partials=address(partials),
        counters=address(counters),
    )
    launch("comet_w4ax_sm80", arguments, out.device)


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
