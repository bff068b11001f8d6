# SPDX-License-Identifier: Apache-2.0
"""The pinned activation arithmetic: properties, extremes, exact values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import UserError
from comet.formats.activations import MODES, hadamard, quantize_activations
from comet.formats.blocks import BLOCK, BlockLayout, gather_channels, natural_permutation

layouts = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, BLOCK)).filter(
    lambda shape: shape[0] + shape[1] > 0
)


def make(int4_blocks, int8_blocks, last, tokens=5, seed=0):
    channels = (int4_blocks + int8_blocks - 1) * BLOCK + last
    layout = BlockLayout(channels, int4_blocks, int8_blocks)
    x = torch.randn(tokens, channels, generator=torch.Generator().manual_seed(seed))
    x[:, ::37] *= 30
    return x, layout, natural_permutation(layout)


def expected_values(x, layout, permutation, rotate):
    values = gather_channels(x, permutation).view(len(x), -1, BLOCK)
    if rotate:
        rotated = hadamard(values[:, : layout.int4_blocks])
        values = torch.cat((rotated, values[:, layout.int4_blocks :]), dim=1)
    return values


@settings(deadline=None, max_examples=60)
@given(layouts, st.sampled_from(MODES), st.booleans(), st.booleans(), st.integers(0, 99))
def test_codes_stay_in_range_and_errors_within_a_step(shape, mode, zero_point, rotate, seed):
    x, layout, permutation = make(*shape, seed=seed)
    q = quantize_activations(x, layout, permutation, mode, zero_point, rotate)
    codes = q.codes.view(len(x), -1, BLOCK)
    part4, part8 = codes[:, : layout.int4_blocks], codes[:, layout.int4_blocks :]
    assert part4.abs().max() <= (15 if zero_point else 7) if part4.numel() else True
    assert part8.abs().max() <= 127 if part8.numel() else True
    assert torch.all(q.multiples >= 1) and torch.all(q.multiples <= (8 if zero_point else 18))
    error = (q.dequantize().view_as(codes) - expected_values(x, layout, permutation, rotate)).abs()
    # A zero point is rounded too: another half step at the ends of the range.
    steps = 1.0 if zero_point else 0.5
    assert torch.all(error <= steps * q.block_scales()[..., None] * (1 + 1e-5))


@settings(deadline=None, max_examples=30)
@given(layouts, st.sampled_from(MODES), st.integers(0, 99))
def test_a_permutation_of_whole_blocks_permutes_the_result(shape, mode, seed):
    int4_blocks, int8_blocks, _ = shape
    x, layout, permutation = make(int4_blocks, int8_blocks, BLOCK, seed=seed)
    shuffled = torch.randperm(layout.channels, generator=torch.Generator().manual_seed(seed))
    direct = quantize_activations(x[:, shuffled], layout, permutation, mode)
    gathered = quantize_activations(x, layout, shuffled.to(torch.int32), mode)
    assert torch.equal(direct.codes, gathered.codes)
    assert torch.equal(direct.block_scales(), gathered.block_scales())


def test_pinned_values_of_the_multiple_mode():
    layout = BlockLayout(3 * BLOCK, 2, 1)
    x = torch.zeros(1, 3 * BLOCK)
    x[0, 0], x[0, 1] = 126.0, 9.0  # block scale 18, base 1
    x[0, BLOCK], x[0, BLOCK + 1] = 20.0, -10.0  # ceil(18 * 20 / 126) = 3
    x[0, 2 * BLOCK], x[0, 2 * BLOCK + 1] = 254.0, 3.0  # scale 2
    q = quantize_activations(x, layout, natural_permutation(layout))
    assert q.base[0].tolist() == [1.0, 1.0] and q.scale8[0].tolist() == [2.0]
    assert q.multiples[0].tolist() == [18, 3]
    assert q.codes[0, :2].tolist() == [7, 0]  # 9 / 18 ties to even
    assert q.codes[0, BLOCK : BLOCK + 2].tolist() == [7, -3]
    assert q.codes[0, 2 * BLOCK : 2 * BLOCK + 2].tolist() == [127, 2]
    assert q.operand()[0, :2].tolist() == [126, 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("zero_point", [False, True])
def test_zeros_have_code_zero_and_scale_one(mode, zero_point):
    layout = BlockLayout(200, 1, 1)
    q = quantize_activations(
        torch.zeros(2, 200), layout, natural_permutation(layout), mode, zero_point
    )
    assert not q.codes.any()
    assert torch.all(q.base == 1) and torch.all(q.scale8 == 1) and torch.all(q.multiples == 1)


def test_one_outlier_costs_only_its_own_block():
    layout = BlockLayout(2 * BLOCK, 2, 0)
    x = torch.randn(1, 2 * BLOCK, generator=torch.Generator().manual_seed(1))
    quiet = quantize_activations(x, layout, natural_permutation(layout), "token_block")
    x[0, 3] = 1000.0
    loud = quantize_activations(x, layout, natural_permutation(layout), "token_block")
    assert torch.equal(quiet.codes[:, BLOCK:], loud.codes[:, BLOCK:])
    assert loud.codes[0, 3] == 7 and not loud.codes[0, 4:BLOCK].any()


def test_extreme_magnitudes_survive():
    layout = BlockLayout(BLOCK, 1, 0)
    x = torch.full((2, BLOCK), 65504.0)
    x[1] = 6e-8
    q = quantize_activations(x, layout, natural_permutation(layout))
    assert torch.all(q.codes == 7)
    assert torch.allclose(q.dequantize(), x, rtol=1e-5)


def test_hadamard_is_its_own_inverse():
    x = torch.randn(3, 2, BLOCK, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(hadamard(hadamard(x)), x, atol=1e-5)
    assert torch.allclose(hadamard(x).norm(dim=-1), x.norm(dim=-1), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :-1], "shape"),
        (lambda x: torch.where(x > 0, torch.nan, x), "not finite"),
    ],
)
def test_bad_input_is_one_clear_line(change, message):
    x, layout, permutation = make(1, 1, 10)
    with pytest.raises(UserError, match=message) as error:
        quantize_activations(change(x), layout, permutation)
    assert "\n" not in str(error.value)


def test_unknown_mode_is_named():
    x, layout, permutation = make(1, 0, BLOCK)
    with pytest.raises(UserError, match="per_tensor"):
        quantize_activations(x, layout, permutation, "per_tensor")
