# SPDX-License-Identifier: Apache-2.0
"""A whole quantized layer on the operators: the kernel is chosen by device and scales."""

import pytest
import torch

from comet.errors import UserError
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.options import FMPQOptions
from comet.fmpq.weights import quantize_weight
from comet.formats.blocks import BlockLayout
from comet.kernels.linear import in_natural_order, linear_kernel


def packed(channels: int, int8_blocks: int, **options):
    torch.manual_seed(0)
    layout = BlockLayout.of(channels, int8_blocks)
    order = torch.full((layout.padded,), -1, dtype=torch.int32)
    padding = layout.padded - channels
    # Padding ends the INT4 part.
    places = [
        i for i in range(layout.padded) if not 0 <= i - layout.int4_channels + padding < padding
    ]
    order[places] = torch.randperm(channels).int()
    moment = torch.eye(channels)
    weight = torch.randn(48, channels) * 0.1
    return quantize_weight(weight, moment, layout, order, FMPQOptions(**options))


CASES = {
    "default": ({}, "token_block_multiple", "sm90"),
    "zero point": ({"act_zero_point": True}, "token_block_multiple", "sm90"),
    "hadamard": ({"act_hadamard": True}, "token_block_multiple", "sm90"),
    "token": ({}, "token", "sm90"),
    "as the paper": ({"weight_scale": "group_fp"}, "token_block", "sm90_block_scaled"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels", [384, 320])
def test_a_layer_on_the_operators_is_the_reference_layer(case, channels):
    options, mode, name = CASES[case]
    weight = packed(channels, 1, **options)
    zero_point = options.get("act_zero_point", False)
    bias = torch.randn(48)
    fixed = (weight.scale_kind, mode, zero_point, weight.hadamard)
    kernel = linear_kernel(weight.layout, *fixed, device="cpu")
    assert kernel.kernel == name
    x = torch.randn(5, channels).bfloat16()
    y = kernel(x, *kernel.prepare(weight, "cpu"), weight.permutation, bias)
    reference = W4AxLinear(weight, bias, mode, zero_point, path="integer")
    torch.testing.assert_close(y, reference(x), rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_what_precedes_the_layer_may_be_fused_with_it(case):
    options, mode, name = CASES[case]
    weight = packed(384, 1, **options)
    zero_point = options.get("act_zero_point", False)
    kernel = linear_kernel(
        weight.layout, weight.scale_kind, mode, zero_point, weight.hadamard, "cpu"
    )
    prepared = kernel.prepare(weight, "cpu")
    x, residual, gain, up = (
        torch.randn(shape).half() for shape in [(5, 384)] * 2 + [384, (5, 384)]
    )
    order = weight.permutation

    def multiplied(operand):
        return kernel.multiply(operand, *prepared, None, torch.float16)

    operand, total = kernel.quantize_normed(x, gain, 1e-5, residual, order)
    assert torch.equal(total, x + residual)
    mean = total.float().pow(2).mean(1, keepdim=True)
    normed = (total.float() * torch.rsqrt(mean + 1e-5)).half() * gain
    assert torch.equal(multiplied(operand), kernel(normed, *prepared, order))
    alone, none = kernel.quantize_normed(total, gain, 1e-5, None, order)
    assert none is None
    assert torch.equal(multiplied(alone), multiplied(operand))
    gated = torch.nn.functional.silu(x) * up
    assert torch.equal(
        multiplied(kernel.quantize_gated(x, up, order)), kernel(gated, *prepared, order)
    )


def test_the_layer_compiles_into_one_graph():
    weight = packed(384, 1)
    kernel = linear_kernel(weight.layout, "group_int", "token_block_multiple", device="cpu")
    tiles, scales = kernel.prepare(weight, "cpu")

    def layer(x):
        return kernel(x, tiles, scales, weight.permutation) * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (3, 8):
        x = torch.randn(tokens, 384).half()
        assert torch.equal(compiled(x), layer(x))


def test_natural_order_needs_no_gather():
    weight = packed(384, 0)
    assert not in_natural_order(weight)
    layout = BlockLayout.of(384, 0)
    natural = quantize_weight(
        torch.randn(8, 384), torch.eye(384), layout, torch.arange(384).int(), FMPQOptions()
    )
    assert in_natural_order(natural)


@pytest.fixture
def ampere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "A100")


def test_ampere_takes_its_own_kernel_and_says_what_it_lacks(ampere):
    layout = BlockLayout.of(384, 1)
    kernel = linear_kernel(layout, "group_int", "token_block_multiple", device="cuda")
    assert kernel.kernel == "sm80"
    weight = packed(384, 1)
    x = torch.randn(5, 384).half()
    y = kernel(x, *kernel.prepare(weight, "cpu"), weight.permutation)
    reference = W4AxLinear(weight, None, "token_block_multiple", path="integer")
    torch.testing.assert_close(y, reference(x), rtol=2**-7, atol=1e-3)
    with pytest.raises(UserError, match="A100 has no kernel for act_scale 'token_block'"):
        linear_kernel(layout, "group_int", "token_block", device="cuda")
    with pytest.raises(UserError, match="quantize without act_zero_point"):
        linear_kernel(layout, "group_int", "token_block_multiple", True, device="cuda")


def test_an_old_gpu_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "V100")
    with pytest.raises(UserError, match="V100 is older than Ampere"):
        linear_kernel(BlockLayout.of(384, 1), "group_int", "token_block_multiple")
