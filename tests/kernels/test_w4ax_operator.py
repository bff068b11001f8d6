# SPDX-License-Identifier: Apache-2.0
"""The W4Ax operator on a CPU: layout, exactness, errors, plans. No GPU is needed."""

from dataclasses import replace

import pytest
import torch

from comet.errors import UserError
from comet.formats.activations import quantize_activations as reference_quantize
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.packing import pack_int4
from comet.formats.weights import pack_weight
from comet.kernels import plan_sm90
from comet.kernels.activations import quantize_activations
from comet.kernels.layout_sm90 import (
    TILE_BYTES,
    tile_rows,
    tile_weights,
    unswizzled_rows,
    untile_weights,
)
from comet.kernels.operands import swizzled_blocks
from comet.kernels.plan_sm90 import bucket_of, choose
from comet.kernels.plan_table import TABLE
from comet.kernels.reference import w4ax_linear_reference
from comet.kernels.w4ax import prepare_weight, w4ax_linear
from comet.kernels.w4ax_block_scaled import prepare_block_scaled, w4ax_linear_block_scaled
from comet.kernels.w4ax_call import Instance
from comet.speed.tune_sm90 import candidates


def random_weight(n: int, k: int, int8_blocks: int):
    layout = BlockLayout.of(k, int8_blocks)
    s = torch.randint(1, 18, (n, layout.blocks))
    z = torch.randint(0, 16, (n, layout.blocks))
    u = torch.randint(0, 16, (n, layout.blocks, 128))
    u = torch.maximum(torch.minimum(u, (z + 127 // s)[..., None]), (z - 128 // s)[..., None])
    codes = u.clamp(0, 15).view(n, -1)
    scale = torch.rand(n) * 1e-3
    permutation = natural_permutation(layout)
    return pack_weight(layout, permutation, codes, s.byte(), z.byte(), scale, "group_int")


def instance(name: str, tokens: int, channels: int, stream: bool, residency: int) -> Instance:
    return Instance(0, name, tokens, channels, stream, residency, 4, channels // 64, 1)


AVAILABLE = {
    "T8x1": instance("T8x1", 8, 64, False, 4),
    "T16x1": instance("T16x1", 16, 64, False, 4),
    "T32x1": instance("T32x1", 32, 64, False, 4),
    "T32s2": instance("T32s2", 32, 128, True, 2),
    "T64x1": instance("T64x1", 64, 64, False, 3),
    "T64s2": instance("T64s2", 64, 128, True, 2),
    "T128s2": instance("T128s2", 128, 128, True, 1),
    "T128x2": instance("T128x2", 128, 128, False, 1),
    "T128s3": instance("T128s3", 128, 192, True, 1),
    "T256s2": instance("T256s2", 256, 128, True, 1),
}


@pytest.mark.parametrize(("n", "blocks"), [(64, 1), (8, 2), (72, 3), (200, 5)])
def test_tiles_hold_the_integers(n, blocks):
    weight = random_weight(n, blocks * 128, 0)
    tiles = tile_weights(weight.codes, weight.group_scale, weight.group_zero)
    assert tiles.shape == (tile_rows(n), blocks, TILE_BYTES)
    assert torch.equal(untile_weights(tiles, n), weight.integers())


def test_tile_words_lie_where_the_fragment_wants_them():
    codes = torch.zeros(64, 128, dtype=torch.uint8)
    channel, k = 16 + 2 * 5 + 1, 64 + 32 + 16 + 4 * 3 + 2  # warp 1, pair 5, odd; second half
    codes[channel, k] = 9
    ones = torch.ones(64, 1, dtype=torch.uint8)
    tiles = tile_weights(pack_int4(codes), ones, ones)[0, 0, :4096]
    lane, step, row_half, byte = 5 * 4 + 3, 1, 1, 2
    place = 1 * 1024 + 512 + lane * 16 + step * 8 + row_half * 4 + byte
    assert tiles.nonzero().flatten().tolist() == [place]
    assert int(tiles[place]) == 9 << 4


def test_swizzle_is_undone():
    rows = torch.randint(-128, 128, (13, 384), dtype=torch.int8)
    assert torch.equal(unswizzled_rows(swizzled_blocks(rows), 13), rows)


@pytest.mark.parametrize("int8_blocks", [0, 1, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operator_equals_the_reference(int8_blocks, dtype):
    weight = random_weight(72, 640, int8_blocks)
    prepared = prepare_weight(weight, "cpu")
    x = torch.randn(5, 640, dtype=torch.bfloat16)
    bias = torch.randn(72)
    found = w4ax_linear(quantize_activations(x, weight.layout), prepared, bias, dtype)
    want = w4ax_linear_reference(reference_quantize(x, weight.layout), weight, bias, dtype)
    assert torch.equal(found, want)


@pytest.mark.parametrize("scale_kind", ["group_int", "group_fp"])
def test_block_scaled_operator_equals_the_reference(scale_kind):
    weight = random_weight(72, 640, 2)
    if scale_kind == "group_fp":
        weight = replace(weight, group_scale=torch.rand(72, 5).half(), scale_kind="group_fp")
    prepared = prepare_block_scaled(weight, "cpu")
    x, bias = torch.randn(5, 640, dtype=torch.bfloat16), torch.randn(72)
    operand = quantize_activations(x, weight.layout, mode="token_block")
    found = w4ax_linear_block_scaled(operand, prepared, bias)
    quantized = reference_quantize(x, weight.layout, mode="token_block")
    assert torch.equal(found, w4ax_linear_reference(quantized, weight, bias, torch.bfloat16))


def test_operator_traces_without_data():
    weight = random_weight(64, 256, 1)
    prepared = prepare_weight(weight, "cpu")
    operand = quantize_activations(torch.randn(3, 256, dtype=torch.bfloat16), weight.layout)
    fields = (*operand[:3], prepared.tiles, prepared.channel_scale, None, 1, torch.float16, False)
    torch.library.opcheck(torch.ops.comet.w4ax_linear.default, fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float32}, "dtype is torch.float32"),
        ({"bias": torch.zeros(63)}, r"bias is torch.float32 \(63,\)"),
        ({"bias": torch.zeros(64, dtype=torch.float16)}, "bias is torch.float16"),
    ],
)
def test_bad_arguments_are_named(change, message):
    weight = random_weight(64, 256, 1)
    operand = quantize_activations(torch.randn(3, 256, dtype=torch.bfloat16), weight.layout)
    with pytest.raises(UserError, match=message):
        w4ax_linear(operand, prepare_weight(weight, "cpu"), **change)


def test_operand_of_another_width_is_refused():
    operand = quantize_activations(torch.randn(3, 384).half(), BlockLayout.of(384, 1))
    with pytest.raises(UserError, match=r"operand is torch.int8 \(3, 8, 128\)"):
        w4ax_linear(operand, prepare_weight(random_weight(64, 256, 1), "cpu"))


def test_odd_output_channels_are_refused():
    with pytest.raises(UserError, match="12 output channels; they must be a multiple of 8"):
        prepare_weight(random_weight(12, 128, 0), "cpu")


def test_every_size_has_a_plan_that_fits():
    for m in (1, 8, 9, 33, 64, 65, 128, 200, 256, 300, 1000, 5000):
        for n, k in ((64, 128), (4096, 4096), (4096, 14336), (57344, 8192), (1000, 29568)):
            for allowed in (False, True):
                plan = choose(m, n, k // 128, 131, AVAILABLE, allowed)
                chosen = AVAILABLE[plan.instance]
                assert (plan.grid > 0) == chosen.stream
                assert plan.split <= max(1, k // 128 // 4)
                assert allowed or not plan.dependent_launch


@pytest.fixture
def unmeasured(monkeypatch):
    """The rules alone, as for a shape or GPU that the table does not know."""
    monkeypatch.setattr(plan_sm90, "TABLE", {})


def test_large_tiles_are_cut_where_few_rounds_would_leave_sms_idle(unmeasured):
    def cut(m, n, k):
        plan = choose(m, n, k // 128, 132, AVAILABLE)
        return plan.instance, plan.grid, plan.shared_tiles

    assert cut(256, 22016, 4096) == ("T256s2", 132, 172)  # 1.3 rounds
    assert cut(256, 59136, 8192) == ("T256s2", 132, 198)  # 3.5 rounds, two and a half of them cut
    assert cut(256, 27648, 5120) == ("T256s2", 132, 0)  # 1.6 rounds of 40 blocks
    assert cut(4096, 22016, 4096) == ("T256s2", 132, 0)  # 21 rounds


@pytest.mark.parametrize(
    ("m", "n", "k", "split"),
    [(64, 8192, 28672, 2), (64, 15360, 4096, 1), (16, 4096, 11008, 4), (128, 8192, 29568, 2)],
)
def test_few_tiles_are_split_until_sms_have_two_blocks(m, n, k, split, unmeasured):
    assert choose(m, n, k // 128, 132, AVAILABLE).split == split


def test_candidates_run_at_once():
    for plan in candidates(64, 8192, 64, 132, AVAILABLE):
        tiles = AVAILABLE[plan.instance].tiles(64, 8192)
        slots = 132 * AVAILABLE[plan.instance].residency
        assert plan.split == 1 or tiles * plan.split <= slots
        assert plan.shared_tiles <= tiles


def test_table_keys_are_buckets():
    assert TABLE
    for bucket, rows, blocks, _ in TABLE:
        assert bucket_of(bucket) == bucket
        assert rows > 0 and blocks > 0
