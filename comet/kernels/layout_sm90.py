# SPDX-License-Identifier: Apache-2.0
"""The weight tiles of sm_90a in plain torch; ``csrc/include/comet/sm90/weight_tile.cuh`` says why.

A tile holds 64 output channels x 128 input channels: 4096 bytes of codes in the order in which
wgmma fragments want them, then (s, 255 - s * z) of each channel. The kernel's u8 operand is
``s * u + 128 - s * z``, that is q + 128.
"""

import torch
from torch import Tensor

from comet.formats.blocks import BLOCK
from comet.formats.packing import unpack_int4

TILE_CHANNELS = 64
CODE_BYTES = TILE_CHANNELS * BLOCK // 2
TILE_BYTES = CODE_BYTES + 2 * TILE_CHANNELS
OPERAND_OFFSET = 128

# A channel of a tile is (warp 4, pair 8, row half 2); k of a block is (half 2, step 2, nibble 2,
# quad 4, byte 4). Codes lie as [warp, half, pair, quad, step, row half, byte], low nibble first.
_CHANNEL = (4, 8, 2)
_K = (2, 2, 2, 4, 4)


def tile_rows(channels: int) -> int:
    """64-channel rows of tiles that N output channels need."""
    return -(-channels // TILE_CHANNELS)


def tile_weights(codes: Tensor, group_scale: Tensor, group_zero: Tensor) -> Tensor:
    """Lay canonical ``group_int`` weights out as tiles.

    Args:
        codes: uint8 [N, Kp / 2], even channel low.
        group_scale: uint8 [N, Kp / 128], s in 1..17.
        group_zero: uint8 [N, Kp / 128], z in 0..15.

    Returns:
        uint8 [N / 64 rounded up, Kp / 128, 4224]; padding channels have codes and scales of zero.
    """
    blocks = group_scale.shape[1]
    rows = tile_rows(codes.shape[0])
    u = _pad_rows(unpack_int4(codes), rows).view(rows, *_CHANNEL, blocks, *_K)
    # [row, block, warp, half, pair, quad, step, row half, byte, nibble]
    u = u.permute(0, 4, 1, 5, 2, 8, 6, 3, 9, 7).to(torch.uint8)
    packed = (u[..., 0] | (u[..., 1] << 4)).reshape(rows, blocks, CODE_BYTES)
    s, z = (_pad_rows(t, rows).to(torch.int16) for t in (group_scale, group_zero))
    pairs = torch.stack((s, 255 - s * z), dim=-1).to(torch.uint8)
    pairs = pairs.view(rows, TILE_CHANNELS, blocks, 2).transpose(1, 2)
    return torch.cat((packed, pairs.reshape(rows, blocks, -1)), dim=2)


def untile_weights(tiles: Tensor, channels: int) -> Tensor:
    """Integers of tiled weights: q = s * (u - z), int16 [N, Kp]."""
    rows, blocks = tiles.shape[:2]
    shape = (rows, blocks, 4, 2, 8, 4, 2, 2, 4)
    packed = tiles[..., :CODE_BYTES].reshape(shape)
    u = torch.stack((packed & 15, packed >> 4), dim=-1)
    # [row, warp, pair, row half, block, half, step, nibble, quad, byte]
    u = u.permute(0, 2, 4, 7, 1, 3, 6, 9, 5, 8).reshape(rows * TILE_CHANNELS, blocks, BLOCK)
    pairs = tiles[..., CODE_BYTES:].reshape(rows, blocks, TILE_CHANNELS, 2).transpose(1, 2)
    pairs = pairs.reshape(rows * TILE_CHANNELS, blocks, 1, 2).to(torch.int16)
    operand = pairs[..., 0] * u.to(torch.int16) + (pairs[..., 1] - 127)
    return (operand - OPERAND_OFFSET).flatten(1)[:channels]


def unswizzled_rows(operand: Tensor, tokens: int) -> Tensor:
    """Inverse of ``comet.kernels.operands.swizzled_blocks``: int8 [M, Kp]."""
    chunks = operand.view(*operand.shape[:2], BLOCK // 16, 16)
    row = torch.arange(chunks.shape[1], device=operand.device)[:, None]
    source = torch.arange(BLOCK // 16, device=operand.device)[None] ^ (row & 7)
    rows = chunks.gather(2, source[None, :, :, None].expand(chunks.shape))
    return rows.flatten(2).transpose(0, 1).flatten(1)[:tokens]


def _pad_rows(values: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, 0, 0, rows * TILE_CHANNELS - values.shape[0]))
