# SPDX-License-Identifier: Apache-2.0
"""The weight tiles of sm_80 in plain torch; ``csrc/include/comet/sm80/weight_tile.cuh`` says why.

A tile holds 128 output channels x 128 input channels: 8192 bytes of codes, then (s, 8 - z) of each
channel. Codes are u - 8 in two's complement, so that ``s * (u - z) = s * ((u - 8) + (8 - z))``.
"""

import torch
from torch import Tensor

from comet.formats.blocks import BLOCK
from comet.formats.packing import unpack_int4

TILE_CHANNELS = 128
CODE_BYTES = TILE_CHANNELS * BLOCK // 2
TILE_BYTES = CODE_BYTES + 2 * TILE_CHANNELS
CENTRE = 8  # zero point of symmetric weights

# A channel of a tile is (group 16, lane row 8). K of an INT4 block is (step 2, half 2, quad 4,
# nibble 8); K of an INT8 block is (step 4, nibble half 2, quad 4, byte 4).
_CHANNEL = (16, 8)
_K4 = (2, 2, 4, 8)
_K8 = (4, 2, 4, 4)


def tile_rows(channels: int) -> int:
    """128-channel rows of tiles that N output channels need."""
    return -(-channels // TILE_CHANNELS)


def tile_weights(
    codes: Tensor, group_scale: Tensor, group_zero: Tensor, int4_blocks: int, interleaved: bool
) -> Tensor:
    """Lay canonical ``group_int`` weights out as tiles.

    Args:
        codes: uint8 [N, Kp / 2], even channel low.
        group_scale: uint8 [N, Kp / 128], s in 1..17.
        group_zero: uint8 [N, Kp / 128], z in 0..15.
        int4_blocks: leading blocks whose activations are INT4.
        interleaved: codes in the order of tensor-core fragments; otherwise 64 bytes a channel with
            K in order, which only a build variant of the kernel reads.

    Returns:
        uint8 [N / 128 rounded up, Kp / 128, 8448]; what pads N has codes and scales of zero.
    """
    rows, blocks = tile_rows(codes.shape[0]), group_scale.shape[1]
    # The low four bits of u - 8 are those of u with the highest one flipped.
    flipped = _pad_rows(codes ^ 0x88, rows).view(rows, TILE_CHANNELS, blocks, BLOCK // 2)
    if interleaved:
        parts = [
            _interleave4(flipped[:, :, :int4_blocks]),
            _interleave8(flipped[:, :, int4_blocks:]),
        ]
        packed = torch.cat(parts, dim=1)
    else:
        packed = flipped.transpose(1, 2).reshape(rows, blocks, CODE_BYTES)
    s, z = (_pad_rows(t, rows) for t in (group_scale, group_zero))
    # Two's complement of 8 - z in a byte; a padding channel is multiplied by s = 0.
    terms = torch.stack((s, CENTRE - z), dim=-1).view(rows, TILE_CHANNELS, blocks, 2)
    return torch.cat((packed, terms.transpose(1, 2).reshape(rows, blocks, -1)), dim=2)


def untile_weights(tiles: Tensor, channels: int, int4_blocks: int, interleaved: bool) -> Tensor:
    """Integers of tiled weights: q = s * (u - z), int16 [N, Kp]."""
    rows, blocks = tiles.shape[:2]
    packed, terms = tiles[..., :CODE_BYTES], tiles[..., CODE_BYTES:]
    if interleaved:
        parts = (_natural4(packed[:, :int4_blocks]), _natural8(packed[:, int4_blocks:]))
        u = torch.cat(parts, dim=1)
    else:
        u = unpack_int4(packed.reshape(rows, blocks, TILE_CHANNELS, BLOCK // 2))
    code = (u ^ CENTRE).to(torch.int16) - CENTRE
    s, offset = terms.reshape(rows, blocks, TILE_CHANNELS, 2, 1).to(torch.int16).unbind(3)
    offset = offset - 256 * (offset > 127)
    q = (s * (code + offset)).transpose(1, 2)
    return q.reshape(rows * TILE_CHANNELS, blocks * BLOCK)[:channels]


def _interleave4(codes: Tensor) -> Tensor:
    """[rows, 128, B4, 64] to [rows, B4, 8192]: word 2 * step + half of lane 4 * row + quad."""
    rows, _, blocks, _ = codes.shape
    u = unpack_int4(codes).view(rows, *_CHANNEL, blocks, *_K4)
    # [rows, block, group, lane row, quad, step, half, nibble]
    u = u.permute(0, 3, 1, 2, 6, 4, 5, 7)
    return (u[..., 0::2] | (u[..., 1::2] << 4)).reshape(rows, blocks, CODE_BYTES)


def _natural4(packed: Tensor) -> Tensor:
    """Inverse of ``_interleave4``, unpacked: [rows, B4, 128, 128]."""
    rows, blocks = packed.shape[:2]
    u = unpack_int4(packed).view(rows, blocks, *_CHANNEL, 4, 2, 2, 8)
    return u.permute(0, 1, 2, 3, 5, 6, 4, 7).reshape(rows, blocks, TILE_CHANNELS, BLOCK)


def _interleave8(codes: Tensor) -> Tensor:
    """[rows, 128, B8, 64] to [rows, B8, 8192]: word ``step`` of lane 4 * row + quad."""
    rows, _, blocks, _ = codes.shape
    u = unpack_int4(codes).view(rows, *_CHANNEL, blocks, *_K8)
    # [rows, block, group, lane row, quad, step, byte, nibble half]
    u = u.permute(0, 3, 1, 2, 6, 4, 7, 5)
    return (u[..., 0] | (u[..., 1] << 4)).reshape(rows, blocks, CODE_BYTES)


def _natural8(packed: Tensor) -> Tensor:
    """Inverse of ``_interleave8``, unpacked: [rows, B8, 128, 128]."""
    rows, blocks = packed.shape[:2]
    u = unpack_int4(packed).view(rows, blocks, *_CHANNEL, 4, 4, 4, 2)
    return u.permute(0, 1, 2, 3, 5, 7, 4, 6).reshape(rows, blocks, TILE_CHANNELS, BLOCK)


def _pad_rows(values: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, 0, 0, rows * TILE_CHANNELS - values.shape[0]))
