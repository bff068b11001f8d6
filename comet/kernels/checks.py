# SPDX-License-Identifier: Apache-2.0
"""Checks that the kernel operators share; each error names the argument, its limit and its value.

They read shapes, types and strides only, so that they hold for fake tensors as well.
"""

from types import ModuleType

import torch
from torch import Tensor

from comet.errors import UserError
from comet.formats.blocks import BLOCK
from comet.formats.weights import PackedWeight

DTYPES = (torch.float16, torch.bfloat16)  # in the order of comet::Dtype (csrc/include/comet)
CHANNEL_ALIGN = 8
MAX_BLOCKS = 1024  # 131,072 input channels: below, int32 sums cannot overflow


def check_dtype(subject: str, dtype: torch.dtype) -> None:
    """Check the type of a result or of activations; ``subject`` starts the error's sentence.

    Raises:
        UserError: it is neither fp16 nor bf16.
    """
    if dtype not in DTYPES:
        raise UserError(f"{subject} {dtype}; it must be torch.float16 or torch.bfloat16")


def check_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple, device: torch.device
) -> None:
    """Check one tensor argument.

    Raises:
        UserError: dtype, shape or device differ, or it is not contiguous.
    """
    check_like(name, tensor, dtype, shape, device)
    if not tensor.is_contiguous():
        raise UserError(f"{name} has strides {tensor.stride()}; it must be contiguous")


def check_like(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple, device: torch.device
) -> None:
    """As ``check_tensor``, whatever the strides."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or tensor.device != device:
        raise UserError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; it must be "
            f"{dtype} {tuple(shape)} on {device}"
        )


def check_tensors(
    expected: dict[str, tuple[Tensor | None, torch.dtype, tuple]], device: torch.device
) -> None:
    """Check tensor arguments by name: (tensor, dtype, shape); None is an argument left out."""
    for name, (tensor, dtype, shape) in expected.items():
        if tensor is not None:
            check_tensor(name, tensor, dtype, shape, device)


def check_alignment(name: str, tensor: Tensor) -> None:
    """Check that copies of 16 bytes are possible; fake tensors have no address, only an offset.

    Raises:
        UserError: the tensor starts elsewhere in its storage.
    """
    offset = tensor.storage_offset() * tensor.element_size()
    if offset % 16:
        raise UserError(
            f"{name} starts {offset} bytes into its storage; it must be a multiple of 16"
        )


def check_weight(weight: PackedWeight, scale_kinds: tuple[str, ...]) -> None:
    """Check a weight against the limits of the kernels before it is laid out.

    Raises:
        UserError: its kind of scale, N or K is outside.
    """
    if weight.scale_kind not in scale_kinds:
        wanted = " or ".join(map(repr, scale_kinds))
        raise UserError(f"weight scale_kind is {weight.scale_kind!r}; it must be {wanted}")
    if weight.out_features % CHANNEL_ALIGN:
        raise UserError(
            f"weight has {weight.out_features} output channels; they must be a multiple of "
            f"{CHANNEL_ALIGN}"
        )
    if weight.layout.blocks > MAX_BLOCKS:
        raise UserError(
            f"weight has {weight.layout.channels} input channels; the limit is {MAX_BLOCKS * BLOCK}"
        )


def check_tiled(
    layout: ModuleType, scales: Tensor, tiles: Tensor, channel_scale: Tensor, int4_blocks: int
) -> tuple[int, int, int]:
    """Check that tiled weights, channel scales and token scales belong to one GEMM.

    Args:
        layout: ``layout_sm80`` or ``layout_sm90``.
        scales: of the tokens, must be [2, M].
        tiles: must be [rows of tiles, blocks of K, bytes of a tile].
        channel_scale: [N].
        int4_blocks: must be 0 to the blocks of K.

    Returns:
        M, N and the blocks of K.

    Raises:
        UserError: one does not fit.
    """
    rows_of = f"N / {layout.TILE_CHANNELS} rounded up"
    if tiles.dim() != 3 or tiles.shape[2] != layout.TILE_BYTES:
        raise UserError(
            f"tiles has shape {tuple(tiles.shape)}; it must be ({rows_of}, blocks, "
            f"{layout.TILE_BYTES})"
        )
    if scales.dim() != 2 or scales.shape[0] != 2:
        raise UserError(f"scales has shape {tuple(scales.shape)}; it must be (2, tokens)")
    channels, blocks = channel_scale.numel(), tiles.shape[1]
    if channels % CHANNEL_ALIGN or layout.tile_rows(channels) != tiles.shape[0]:
        raise UserError(
            f"channel_scale has {channels} channels; {tiles.shape[0]} tile rows need a multiple of "
            f"{CHANNEL_ALIGN} that rounds up to {tiles.shape[0] * layout.TILE_CHANNELS}"
        )
    if not 0 < blocks <= MAX_BLOCKS:
        raise UserError(f"tiles has {blocks} blocks of K; the limit is 1 to {MAX_BLOCKS}")
    if not 0 <= int4_blocks <= blocks:
        raise UserError(f"int4_blocks is {int4_blocks}; it must be 0 to {blocks}")
    return scales.shape[1], channels, blocks
