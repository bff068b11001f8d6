# SPDX-License-Identifier: Apache-2.0
"""Calls into the library's sm_90a W4Ax kernels: argument structs, instances, workspaces."""

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from comet.kernels.layout_sm90 import TILE_BYTES, tile_rows
from comet.kernels.library import Library, load_for

DTYPES = (torch.float16, torch.bfloat16)


class W4axArgs(ctypes.Structure):
    """Mirror of ``CometW4axArgs`` in csrc/include/comet/w4ax_sm90.h."""

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
                "split",
                "grid",
                "shared_tiles",
                "prefetch",
                "dependent_launch",
                "early_trigger",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "activations",
                "scales",
                "sums",
                "weights",
                "channel_scale",
                "bias",
                "out",
                "partials",
                "flags",
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
                "stream",
                "residency",
                "stages",
                "warpgroups",
                "partial_bytes",
            )
        ),
    )


class _TileWeightsArgs(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("channels", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("codes", ctypes.c_void_p),
        ("group_scale", ctypes.c_void_p),
        ("group_zero", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Instance:
    """A compiled kernel: output tile, schedule, and what one thread block needs.

    Attributes:
        index: in the library.
        name: for example "T64x1".
        tokens, channels: of the output tile.
        stream: persistent thread blocks (stream-K); otherwise one cluster a tile.
        residency: thread blocks an SM.
        stages: depth of its pipeline.
        warpgroups: that compute.
        partial_bytes: workspace of a thread block of the stream schedule, for sums handed on.
    """

    index: int
    name: str
    tokens: int
    channels: int
    stream: bool
    residency: int
    stages: int
    warpgroups: int
    partial_bytes: int

    def tiles(self, tokens: int, channels: int) -> int:
        """Output tiles of [tokens, channels]."""
        return -(-tokens // self.tokens) * -(-channels // self.channels)


@dataclass(frozen=True)
class Plan:
    """How one GEMM is launched; the fields are those of ``CometW4axArgs``."""

    instance: str
    split: int = 1
    grid: int = 0
    shared_tiles: int = 0
    prefetch: int = 0
    dependent_launch: bool = False
    early_trigger: bool = False


@cache
def instances(library: Library) -> dict[str, Instance]:
    """Kernel instances of the library by name."""
    count = library.function("comet_w4ax_instances")()
    describe = library.function("comet_w4ax_instance", ctypes.c_int, ctypes.POINTER(_Instance))
    found = {}
    for index in range(count):
        raw = _Instance()
        library.check(describe(index, ctypes.byref(raw)), "comet_w4ax_instance")
        name = raw.name.decode()
        found[name] = Instance(
            index,
            name,
            raw.tokens,
            raw.channels,
            bool(raw.stream),
            raw.residency,
            raw.stages,
            raw.warpgroups,
            raw.partial_bytes,
        )
    return found


def tile_weights(codes: Tensor, group_scale: Tensor, group_zero: Tensor) -> Tensor:
    """``layout_sm90.tile_weights`` on the GPU; contiguous CUDA tensors."""
    channels, blocks = group_scale.shape
    tiles = codes.new_empty((tile_rows(channels), blocks, TILE_BYTES))
    library = load_for(codes.device)
    launcher = library.function(
        "comet_tile_weights_sm90", ctypes.POINTER(_TileWeightsArgs), ctypes.c_void_p
    )
    arguments = _TileWeightsArgs(
        ctypes.sizeof(_TileWeightsArgs),
        channels,
        blocks,
        codes.data_ptr(),
        group_scale.data_ptr(),
        group_zero.data_ptr(),
        tiles.data_ptr(),
    )
    with torch.cuda.device(codes.device):
        stream = torch.cuda.current_stream()
        library.check(
            launcher(ctypes.byref(arguments), stream.cuda_stream), "comet_tile_weights_sm90"
        )
        # GEMMs prefetch weights before they wait for the kernel in front of them.
        stream.synchronize()
    return tiles


def w4ax(
    operand: Tensor,
    scales: Tensor,
    sums: Tensor,
    tiles: Tensor,
    channel_scale: Tensor,
    bias: Tensor | None,
    int4_blocks: int,
    out: Tensor,
    plan: Plan,
) -> None:
    """Launch one GEMM on checked CUDA tensors; writes ``out`` [M, N].

    Raises:
        UserError: the library is missing, stale or not built for the device.
        RuntimeError: the launch failed.
    """
    library = load_for(out.device)
    instance = instances(library)[plan.instance]
    with torch.cuda.device(out.device):
        stream = torch.cuda.current_stream().cuda_stream
        arguments = _arguments(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, out)
        for name in ("split", "grid", "shared_tiles", "prefetch", "early_trigger"):
            setattr(arguments, name, getattr(plan, name))
        arguments.instance = instance.index
        arguments.dependent_launch = plan.dependent_launch
        if plan.shared_tiles:
            workspace = _workspace(library, out.device, stream)
            arguments.partials = workspace.sums(plan.grid * instance.partial_bytes)
            arguments.flags = workspace.flags(plan.grid * instance.warpgroups)
        _launch(library, "comet_w4ax_sm90", arguments, stream)


def w4ax_block_scaled(
    operand: Tensor,
    scales: Tensor,
    sums: Tensor,
    tiles: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    dependent_launch: bool,
) -> None:
    """Launch one GEMM with a scale per block on both sides; as ``w4ax``."""
    library = load_for(out.device)
    with torch.cuda.device(out.device):
        stream = torch.cuda.current_stream().cuda_stream
        arguments = _arguments(operand, scales, sums, tiles, weight_scale, bias, 0, out)
        arguments.dependent_launch = dependent_launch
        _launch(library, "comet_w4ax_block_scaled_sm90", arguments, stream)


def _arguments(
    operand, scales, sums, tiles, channel_scale, bias, int4_blocks: int, out: Tensor
) -> W4axArgs:
    return W4axArgs(
        size=ctypes.sizeof(W4axArgs),
        dtype=DTYPES.index(out.dtype),
        tokens=out.shape[0],
        channels=out.shape[1],
        int4_blocks=int4_blocks,
        int8_blocks=tiles.shape[1] - int4_blocks,
        activations=operand.data_ptr(),
        scales=scales.data_ptr(),
        sums=sums.data_ptr(),
        weights=tiles.data_ptr(),
        channel_scale=channel_scale.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        out=out.data_ptr(),
    )


def _launch(library: Library, name: str, arguments: W4axArgs, stream: int) -> None:
    launcher = library.function(name, ctypes.POINTER(W4axArgs), ctypes.c_void_p)
    library.check(launcher(ctypes.byref(arguments), stream), name)


class _Workspace:
    """Sums and flags of one stream. Kernels of a stream run one after another and leave the flags
    zero, so that they share it; a larger request replaces it and keeps the old one alive."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[Tensor] = []
        self._sums = torch.empty(0, dtype=torch.uint8, device=device)
        self._flags = torch.zeros(0, dtype=torch.int32, device=device)

    def sums(self, size: int) -> int:
        """Address of at least ``size`` bytes."""
        if self._sums.numel() < size:
            self._kept.append(self._sums)
            self._sums = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._sums.data_ptr()

    def flags(self, count: int) -> int:
        """Address of at least ``count`` zeros, int32."""
        if self._flags.numel() < count:
            self._kept.append(self._flags)
            self._flags = torch.zeros(max(count, 2048), dtype=torch.int32, device=self._device)
        return self._flags.data_ptr()


_workspaces: dict[tuple[torch.device, int, int], _Workspace] = {}


def _workspace(library: Library, device: torch.device, stream: int) -> _Workspace:
    """The workspace of a stream, or of a graph capture: graphs may replay on other streams."""
    capture = ctypes.c_uint64()
    identify = library.function(
        "comet_capture_id", ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)
    )
    library.check(identify(stream, ctypes.byref(capture)), "comet_capture_id")
    key = (device, stream, capture.value)
    if key not in _workspaces:
        _workspaces[key] = _Workspace(device)
    return _workspaces[key]
