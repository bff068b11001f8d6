# SPDX-License-Identifier: Apache-2.0
"""The yardstick itself: its integer parts against int64, its result against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import UserError
from comet.fmpq.options import FMPQOptions
from comet.fmpq.weights import quantize_weight
from comet.formats.activations import MODES, quantize_activations
from comet.formats.blocks import BLOCK, BlockLayout, natural_permutation
from comet.formats.weights import SCALE_KINDS, pack_weight, worst_case_sum
from comet.kernels.reference import w4ax_integer_parts, w4ax_linear_reference


def problem(channels, int8_blocks, mode, kind, zero_point=False, rotate=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layout = BlockLayout.of(channels, int8_blocks)
    permutation = natural_permutation(layout)
    options = FMPQOptions(weight_scale=kind, act_hadamard=rotate, weight_rounding="nearest")
    weight = torch.randn(24, channels, generator=generator) * 0.05
    packed = quantize_weight(weight, torch.ones(channels), layout, permutation, options)
    x = torch.randn(7, channels, generator=generator)
    x[:, -3:] *= 25
    return quantize_activations(x, layout, permutation, mode, zero_point, rotate), packed, x, weight


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 300), st.integers(0, 2), st.booleans(), st.integers(0, 99))
def test_integer_parts_equal_int64(channels, int8_blocks, zero_point, seed):
    int8_blocks = min(int8_blocks, -(-channels // BLOCK))
    activations, packed, _, _ = problem(
        channels, int8_blocks, "token_block_multiple", "group_int", zero_point, seed=seed
    )
    split = activations.layout.int4_channels
    x, w = activations.operand().long(), packed.integers().long()
    int4_part, int8_part = w4ax_integer_parts(activations, packed)
    assert torch.equal(int4_part.long(), x[:, :split] @ w[:, :split].t())
    assert torch.equal(int8_part.long(), x[:, split:] @ w[:, split:].t())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SCALE_KINDS)
@pytest.mark.parametrize("rotate", [False, True])
def test_result_equals_float64_and_tracks_the_unquantized_layer(mode, kind, rotate):
    activations, packed, x, weight = problem(576, 1, mode, kind, rotate=rotate)
    bias = torch.linspace(-1, 1, 24)
    y = w4ax_linear_reference(activations, packed, bias)
    exact = activations.dequantize().double() @ packed.dequantize().double().t() + bias
    assert torch.allclose(y.double(), exact, rtol=1e-5, atol=1e-5)
    true = x @ weight.t() + bias
    assert (y - true).norm() / true.norm() < 0.2


def test_every_code_at_its_extreme_fits_int32():
    layout = BlockLayout(29568, 116, 115)
    q = torch.full((2, layout.padded), 15)
    packed = pack_weight(
        layout,
        natural_permutation(layout),
        q,
        torch.full((2, layout.blocks), 15, dtype=torch.uint8),
        torch.full((2, layout.blocks), 7),
    )
    activations = quantize_activations(
        torch.full((1, 29568), 3.0), layout, natural_permutation(layout)
    )
    int4_part, int8_part = w4ax_integer_parts(activations, packed)
    assert int(int4_part[0, 0]) == 116 * BLOCK * 126 * 120
    assert int(int8_part[0, 0]) == 115 * BLOCK * 127 * 120
    assert worst_case_sum(BlockLayout(29568, 231, 0)) < 2**31


def test_a_layer_that_could_overflow_is_refused():
    layout = BlockLayout.of(2000 * BLOCK, 0)
    codes = torch.zeros(1, layout.padded, dtype=torch.int64)
    with pytest.raises(UserError, match="overflow int32"):
        pack_weight(
            layout,
            natural_permutation(layout),
            codes,
            torch.full((1, layout.blocks), 16, dtype=torch.uint8),
            torch.full((1, layout.blocks), 8),
        )


@pytest.mark.parametrize(
    ("scale", "zero", "message"), [(0, 8, "1..17"), (18, 8, "1..17"), (17, 0, "-128..127")]
)
def test_weights_outside_the_contract_are_refused(scale, zero, message):
    layout = BlockLayout.of(BLOCK, 0)
    codes = torch.full((1, BLOCK), 15)
    with pytest.raises(UserError, match=message):
        pack_weight(
            layout,
            natural_permutation(layout),
            codes,
            torch.tensor([[scale]], dtype=torch.uint8),
            torch.tensor([[zero]]),
        )
