# SPDX-License-Identifier: Apache-2.0
"""The sm_80 kernel lane by lane in torch: what it reads, converts, multiplies and promotes gives
the integers of the reference. Fragments are as the PTX manual draws them for each instruction."""

import pytest
import torch
from sm80_inputs import random_activations, random_weight

from comet.formats.blocks import BLOCK, BlockLayout
from comet.kernels.layout_sm80 import CODE_BYTES, TILE_BYTES, tile_weights, untile_weights
from comet.kernels.operands import operand_of
from comet.kernels.reference import w4ax_integer_parts

LANE = torch.arange(32)
ROW, QUAD = LANE // 4, LANE % 4
LAYOUTS = [BlockLayout(640, 3, 2), BlockLayout(300, 3, 0), BlockLayout(256, 0, 2)]


def tiled(weight, interleaved=True):
    fields = (weight.codes, weight.group_scale, weight.group_zero)
    return tile_weights(*fields, weight.layout.int4_blocks, interleaved)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("channels", [8, 128, 200])
def test_tiles_hold_the_integers(layout, interleaved, channels):
    weight = random_weight(channels, layout)
    tiles = tiled(weight, interleaved)
    assert tiles.shape == (-(-channels // 128), layout.blocks, TILE_BYTES)
    found = untile_weights(tiles, channels, layout.int4_blocks, interleaved)
    assert torch.equal(found, weight.integers())
    padded = untile_weights(tiles, tiles.shape[0] * 128, layout.int4_blocks, interleaved)
    assert not padded[channels:].any()


def words_of(tile: torch.Tensor, group: int) -> torch.Tensor:
    """int64 [32 lanes, 4]: the 16 bytes that each lane loads."""
    data = tile[group * 512 : (group + 1) * 512].view(32, 4, 4).long()
    return (data << (8 * torch.arange(4))).sum(2)


def signed_fields(registers: torch.Tensor, bits: int) -> torch.Tensor:
    """[lanes, registers] to signed fields [lanes, registers, 32 / bits]."""
    fields = (registers[..., None] >> (bits * torch.arange(32 // bits))) & ((1 << bits) - 1)
    return fields - ((fields >> (bits - 1)) << bits)


def offset_in_stage(int4: bool, row: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
    """``operand_offset`` of loader.cuh."""
    if int4:
        return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4)
    return row * 128 + ((chunk ^ (row & 7)) << 4)


def staged(rows: torch.Tensor, int4: bool) -> torch.Tensor:
    """Bytes [16, 64 or 128] as the loader copies them to shared memory, 16 at a time."""
    width = rows.shape[1]
    memory = torch.zeros(16 * width, dtype=torch.int64)
    for row in range(16):
        for chunk in range(width // 16):
            to = offset_in_stage(int4, torch.tensor(row), torch.tensor(chunk))
            memory[to : to + 16] = rows[row, chunk * 16 : chunk * 16 + 16].long()
    return memory


def load_matrices(memory: torch.Tensor, int4: bool, step: int) -> torch.Tensor:
    """ldmatrix.x4 with the kernel's addresses: int64 [32 lanes, 4 registers]."""
    address = offset_in_stage(int4, LANE % 16, LANE // 16) ^ (step * 32)
    banks = address.view(4, 8) // 16 % 8
    assert all(len(set(matrix.tolist())) == 8 for matrix in banks), "bank conflict"
    # Lane l of register i: 4 bytes from 4 * (l % 4) on of the row that lane 8 * i + l / 4 named.
    first = address.view(4, 8)[:, ROW].t() + 4 * QUAD[:, None]
    return sum(memory[first + byte] << (8 * byte) for byte in range(4))


def mma(a: torch.Tensor, b: torch.Tensor, bits: int) -> torch.Tensor:
    """mma.m16n8k64 of s4 or m16n8k32 of s8: fragments [32, 4] and [32, 2] to [32, 4]."""
    fields, depth = 32 // bits, 256 // bits
    a, b = signed_fields(a, bits), signed_fields(b, bits)
    left = torch.full((16, depth), 99)
    right = torch.full((depth, 8), 99)
    for lane in range(32):
        row, quad = lane // 4, lane % 4
        for field in range(fields):
            for i in range(4):
                k = quad * fields + field + (i // 2) * depth // 2
                left[row + 8 * (i % 2), k] = a[lane, i, field]
            for i in range(2):
                right[quad * fields + field + i * depth // 2, row] = b[lane, i, field]
    d = left @ right
    return torch.stack([d[ROW + 8 * (i // 2), 2 * QUAD + i % 2] for i in range(4)], dim=1)


def converted(word: torch.Tensor) -> torch.Tensor:
    """``convert_interleaved``: [32] to the two operand registers [32, 2]."""
    return torch.stack(((word << 4) & 0xF0F0F0F0, word & 0xF0F0F0F0), dim=1)


def block_sums(rows: torch.Tensor, tile: torch.Tensor, group: int, int4: bool) -> torch.Tensor:
    """What a warp adds for 16 tokens and 8 channels in one block, before r: [32 lanes, 4]."""
    words, memory = words_of(tile, group), staged(rows, int4)
    dot, row_sums = torch.zeros(32, 4, dtype=torch.int64), torch.zeros(32, 4, dtype=torch.int64)
    for step in range(2 if int4 else 4):
        a = load_matrices(memory, int4, step)
        b = words[:, 2 * step : 2 * step + 2] if int4 else converted(words[:, step])
        bits, ones = (4, 0x11111111) if int4 else (8, 0x01010101)
        dot += mma(a, b, bits)
        row_sums += mma(a, torch.full((32, 2), ones), bits)
    if not int4:
        assert not (dot % 16).any()
        dot = dot >> 4
    terms = tile[CODE_BYTES + group * 16 : CODE_BYTES + group * 16 + 16].view(8, 2)
    scale = terms[:, 0].long()
    offset = terms[:, 1].contiguous().view(torch.int8).long()
    channel = torch.stack([2 * QUAD + i % 2 for i in range(4)], dim=1)
    return (dot + offset[channel] * row_sums[:, [0, 0, 2, 2]]) * scale[channel]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lanes_compute_the_integer_parts(layout):
    weight, quantized = random_weight(136, layout), random_activations(16, layout)
    operand, tiles = operand_of(quantized, "sm80").operand, tiled(weight)
    expected4, expected8 = w4ax_integer_parts(quantized, weight)
    b4 = layout.int4_blocks
    for group in (0, 5, 16):
        sums4, sums8 = torch.zeros(32, 4, dtype=torch.int64), torch.zeros(32, 4, dtype=torch.int64)
        for block in range(layout.blocks):
            tile = tiles[group // 16, block]
            if block < b4:
                rows = operand[:, 64 * block : 64 * block + 64]
                r = quantized.multiples[:, block].long()
                found = block_sums(rows, tile, group % 16, True)
                sums4 += found * torch.stack([r[ROW + 8 * (i // 2)] for i in range(4)], dim=1)
            else:
                first = 64 * b4 + BLOCK * (block - b4)
                sums8 += block_sums(operand[:, first : first + BLOCK], tile, group % 16, False)
        for i in range(4):
            place = (ROW + 8 * (i // 2), 8 * group + 2 * QUAD + i % 2)
            assert torch.equal(sums4[:, i], expected4[place].long())
            assert torch.equal(sums8[:, i], expected8[place].long())


def test_conversion_gives_sixteen_times_every_code():
    low, high = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    byte = (low | high << 4).flatten()
    first, second = signed_fields(converted(byte * 0x01010101), 8).unbind(1)
    for found, nibble in ((first, low), (second, high)):
        code = (nibble.flatten() ^ 8) - 8
        assert torch.equal(found, 16 * code[:, None].expand(-1, 4))
