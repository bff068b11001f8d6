# SPDX-License-Identifier: Apache-2.0
"""The quantization operators on a CPU: layouts, fakes, compilation, refusals."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from comet.errors import UserError
from comet.formats.activations import MODES
from comet.formats.activations import quantize_activations as reference
from comet.formats.blocks import BLOCK, BlockLayout, natural_permutation
from comet.kernels.activations import quantize_activations, rmsnorm_quantize, silu_quantize
from comet.kernels.operands import LAYOUTS

BLOCKS = BlockLayout.of(576, 2)


def activations(tokens=5, channels=576):
    return torch.randn(tokens, channels).half()


def test_sm90_operand_is_tiled_and_swizzled():
    x = activations(11)
    found = quantize_activations(x, BLOCKS)
    expected = reference(x, BLOCKS, natural_permutation(BLOCKS)).operand()
    assert found.operand.shape == (5, 16, 128)
    for token, channel in ((0, 0), (3, 17), (10, 575), (7, 200), (9, 639)):
        block, byte = divmod(channel, BLOCK)
        place = (byte // 16 ^ token % 8) * 16 + byte % 16
        assert found.operand[block, token, place] == expected[token, channel]
    assert not found.operand[:, 11:].any()
    sums = expected.int()[:, : 3 * BLOCK].sum(1), expected.int()[:, 3 * BLOCK :].sum(1)
    assert torch.equal(found.sums, torch.stack(sums).int())


def test_sm80_operand_packs_nibbles():
    x = activations()
    found = quantize_activations(x, BLOCKS, layout="sm80")
    codes = reference(x, BLOCKS, natural_permutation(BLOCKS)).codes
    assert found.operand.shape == (5, 3 * 64 + 2 * 128)
    nibbles = found.operand[:, : 3 * 64]
    low = (nibbles.to(torch.int8) << 4) >> 4
    high = nibbles.view(torch.int8) >> 4
    assert torch.equal(torch.stack((low, high), 2).flatten(1), codes[:, : 3 * BLOCK])
    assert torch.equal(found.operand[:, 3 * 64 :].view(torch.int8), codes[:, 3 * BLOCK :])


@pytest.mark.parametrize("mode", MODES)
def test_scales_multiply_codes_back(mode):
    x = activations()
    found = quantize_activations(x, BLOCKS, mode=mode, layout="rows")
    expected = reference(x, BLOCKS, natural_permutation(BLOCKS), mode)
    scales = found.scales
    if mode != "token_block":
        parts = (scales[:1].expand(3, -1), scales[1:].expand(2, -1))
        multiples = torch.cat((found.multiples.t(), torch.ones(2, 5, dtype=torch.uint8)))
        scales = torch.cat(parts) * multiples
    blocks = found.operand.float().view(5, 5, BLOCK) * scales.t()[..., None]
    assert torch.equal(blocks.flatten(1), expected.dequantize())


def test_no_blocks_of_one_precision():
    for int8_blocks in (0, 5):
        found = quantize_activations(activations(), BlockLayout.of(576, int8_blocks))
        assert torch.equal(found.scales[int(int8_blocks == 0)], torch.ones(5))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operators_pass_torch_checks(layout):
    """Schema, fake against real, and tracing with symbolic shapes."""
    x, weight = activations(), torch.rand(576).half()
    permutation = natural_permutation(BLOCKS)
    options = (permutation, 3, 2, "token_block_multiple", False, False, layout, False)
    for operator, tensors in (
        (torch.ops.comet.quantize_activations, (x,)),
        (torch.ops.comet.silu_quantize, (x, activations())),
        (torch.ops.comet.rmsnorm_quantize, (x, weight, 1e-5, activations())),
        (torch.ops.comet.rmsnorm_quantize, (x, weight, 1e-5, None)),
    ):
        torch.library.opcheck(operator.default, (*tensors, *options))


def test_fakes_know_the_shapes_of_cuda_outputs():
    with FakeTensorMode():
        x = torch.empty(13, 4096, dtype=torch.bfloat16, device="cuda")
        found = quantize_activations(x, BlockLayout.of(4096, 5), mode="token_block")
    assert found.operand.shape == (32, 16, 128)
    assert found.operand.dtype == torch.int8
    assert found.scales.shape == found.sums.shape == (32, 13)
    assert found.scales.device.type == "cuda"


def test_compiles_into_one_graph():
    def chain(x, residual, weight):
        operand, h = rmsnorm_quantize(x, weight, 1e-5, BLOCKS, residual)
        return operand.scales * 2, silu_quantize(h, x, BLOCKS).operand

    arguments = activations(), activations(), torch.rand(576).half()
    compiled = torch.compile(chain, backend="eager", fullgraph=True)
    for found, expected in zip(compiled(*arguments), chain(*arguments), strict=True):
        assert torch.equal(found, expected)


def test_fused_operators_round_like_separate_ones():
    x, residual, weight = activations(), activations(), torch.rand(576).half()
    h = x + residual
    normed = torch.nn.functional.rms_norm(h.float(), (576,), eps=1e-5).half() * weight
    found, total = rmsnorm_quantize(x, weight, 1e-5, BLOCKS, residual, layout="rows")
    expected = quantize_activations(normed, BLOCKS, layout="rows")
    assert torch.equal(total, h)
    assert (found.operand.int() - expected.operand.int()).abs().max() <= 1
    gated = silu_quantize(x, residual, BLOCKS)
    expected = quantize_activations(torch.nn.functional.silu(x) * residual, BLOCKS)
    assert all(torch.equal(a, b) for a, b in zip(gated, expected, strict=True))


def test_no_tokens():
    found = quantize_activations(activations(0), BLOCKS)
    assert found.operand.shape == (5, 0, 128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(5, 576)}, "x has dtype torch.float32; it must be torch.float16 or"),
        ({"x": activations()[0]}, "x has 1 dimensions; it must have 2"),
        ({"x": activations(2, 50000)}, "x has 50000 channels; the limit is 1 to 49152"),
        ({"x": activations(2, 700)}, "700 channels need 6 blocks of 128"),
        ({"x": activations(576, 576).t()}, "x has channel stride 576; it must be 1"),
        ({"mode": "tensor"}, "mode is 'tensor'; it must be one of token_block_multiple"),
        ({"layout": "sm70"}, "layout is 'sm70'; it must be one of rows, sm90, sm80"),
        ({"layout": "sm80", "zero_point": True}, "layout sm80 holds symmetric 4-bit codes only"),
        (
            {"permutation": torch.arange(640)},
            r"permutation is torch.int64 \(640,\) on cpu; it must be",
        ),
        (
            {"permutation": torch.arange(576, dtype=torch.int32)},
            r"permutation is torch.int32 \(576,\) on cpu; it must be torch.int32 \(640,\)",
        ),
        (
            {"permutation": torch.arange(1280, dtype=torch.int32)[::2]},
            r"permutation has strides \(2,\); it must be contiguous",
        ),
    ],
)
def test_refusals_name_argument_limit_and_value(change, message):
    arguments = {"x": activations(), "blocks": BLOCKS} | change
    with pytest.raises(UserError, match=message):
        quantize_activations(**arguments)


def test_refusals_of_fused_operators():
    x = activations()
    with pytest.raises(UserError, match=r"up is torch.float16 \(4, 576\) on cpu; it must be"):
        silu_quantize(x, x[:4], BLOCKS)
    with pytest.raises(UserError, match=r"residual is torch.bfloat16 \(5, 576\)"):
        rmsnorm_quantize(x, x[0], 1e-5, BLOCKS, x.bfloat16())
    with pytest.raises(UserError, match=r"weight is torch.float16 \(1, 576\)"):
        rmsnorm_quantize(x, x[:1], 1e-5, BLOCKS)
    with pytest.raises(UserError, match="x has 20000 channels; the limit is 1 to 16384"):
        wide = activations(1, 20000)
        rmsnorm_quantize(wide, wide[0], 1e-5, BlockLayout.of(20000, 1))
