# SPDX-License-Identifier: Apache-2.0
"""Calls into the library's sm_90a W4Ax kernels: argument structs, instances, workspaces."""

import ctypes
from ctypes import c_char_p, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from comet.kernels.calls import SIZE, address, described, fields, launch
from comet.kernels.checks import DTYPES
from comet.kernels.layout_sm90 import TILE_BYTES, tile_rows
from comet.kernels.library import Library, load_for
from comet.kernels.workspace import workspace_of


class W4axArgs(ctypes.Structure):
    """Mirror of ``CometW4axArgs`` in csrc/include/comet/w4ax_sm90.h."""

    _fields_ = (
        SIZE,
        *fields(c_int32, "dtype", "tokens", "channels", "int4_blocks", "int8_blocks"),
        *fields(c_int32, "instance", "split", "grid", "shared_tiles", "prefetch"),
        *fields(c_int32, "dependent_launch", "early_trigger", "stagger"),
        *fields(c_void_p, "activations", "scales", "sums", "weights", "channel_scale", "bias"),
        *fields(c_void_p, "out", "partials", "flags"),
    )


class _Instance(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        *fields(c_int32, "tokens", "channels", "stream", "residency", "stages", "warpgroups"),
        *fields(c_int32, "partial_bytes"),
    )


class _TileWeightsArgs(ctypes.Structure):
    _fields_ = (
        SIZE,
        *fields(c_int32, "channels", "blocks"),
        *fields(c_void_p, "codes", "group_scale", "group_zero", "tiles"),
    )


@dataclass(frozen=True)
class Instance:
    """A compiled kernel: output tile, schedule, and what one thread block needs.

    Attributes:
        index: in the library.
        name: for example "T64x1": tokens, then x for one cluster a tile, s and d for stream-K, k
            for warpgroups that take turns along K, and their number.
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
    stagger: int = 0


@cache
def instances(library: Library) -> dict[str, Instance]:
    """Kernel instances of the library by name."""
    found = {}
    for index, raw in enumerate(described(library, "comet_w4ax", _Instance)):
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
    arguments = _TileWeightsArgs(
        channels=channels,
        blocks=blocks,
        codes=address(codes),
        group_scale=address(group_scale),
        group_zero=address(group_zero),
        tiles=address(tiles),
    )
    launch("comet_tile_weights_sm90", arguments, codes.device)
    # GEMMs prefetch weights before they wait for the kernel in front of them.
    torch.cuda.current_stream(codes.device).synchronize()
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
    arguments = _arguments(operand, scales, sums, tiles, channel_scale, bias, int4_blocks, out)
    for name in ("split", "grid", "shared_tiles", "prefetch", "early_trigger", "stagger"):
        setattr(arguments, name, getattr(plan, name))
    arguments.instance = instance.index
    arguments.dependent_launch = plan.dependent_launch
    if plan.shared_tiles:
        workspace = workspace_of(library, out.device)
        arguments.partials = workspace.sums(plan.grid * instance.partial_bytes)
        arguments.flags = workspace.flags(plan.grid * instance.warpgroups)
    launch("comet_w4ax_sm90", arguments, out.device)


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
    arguments = _arguments(operand, scales, sums, tiles, weight_scale, bias, 0, out)
    arguments.dependent_launch = dependent_launch
    launch("comet_w4ax_block_scaled_sm90", arguments, out.device)


def _arguments(
    operand, scales, sums, tiles, channel_scale, bias, int4_blocks: int, out: Tensor
) -> W4axArgs:
    return W4axArgs(
        dtype=DTYPES.index(out.dtype),
        tokens=out.shape[0],
        channels=out.shape[1],
        int4_blocks=int4_blocks,
        int8_blocks=tiles.shape[1] - int4_blocks,
        activations=address(operand),
        scales=address(scales),
        sums=address(sums),
        weights=address(tiles),
        channel_scale=address(channel_scale),
        bias=address(bias),
        out=address(out),
    )
