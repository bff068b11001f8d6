# SPDX-License-Identifier: Apache-2.0
"""The quantization kernels give the reference's bits, on fresh data and poisoned outputs."""

import itertools

import pytest
import torch

from comet.formats.activations import MODES
from comet.formats.blocks import BLOCK, PADDING, BlockLayout
from comet.kernels import quantization_call
from comet.kernels.activations import quantize_activations, rmsnorm_quantize, silu_quantize
from comet.kernels.operands import LAYOUTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DTYPES = (torch.float16, torch.bfloat16)
OPTIONS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Outputs start as NaN and 0x5a, so that whatever is not written shows."""
    fresh = quantization_call.empty_operand

    def empty(x, how):
        out = fresh(x, how)
        if x.is_cuda:
            for tensor in out:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0x5A)
        return out

    monkeypatch.setattr(quantization_call, "empty_operand", empty)


def activations(tokens: int, channels: int, dtype: torch.dtype) -> torch.Tensor:
    """Random values with outlier channels and tokens of very different size."""
    x = torch.randn(tokens, channels) * torch.randn(tokens, 1).mul(2).exp()
    x[:, torch.randperm(channels)[: max(1, channels // 100)]] *= 30
    return x.clamp(-60000, 60000).to(dtype)


def permutation_of(blocks: BlockLayout) -> torch.Tensor:
    """A random permutation whose padding may be anywhere."""
    order = torch.full((blocks.padded,), PADDING, dtype=torch.int32)
    order[torch.randperm(blocks.padded)[: blocks.channels]] = torch.arange(
        blocks.channels, dtype=torch.int32
    )
    return order


def assert_same(x, blocks, permutation, **options):
    """CUDA and CPU operators agree in every bit of every output."""
    on_gpu = None if permutation is None else permutation.cuda()
    found = quantize_activations(x.cuda(), blocks, on_gpu, **options)
    expected = quantize_activations(x.cpu(), blocks, permutation, **options)
    for name, a, b in zip(found._fields, found, expected, strict=True):
        assert torch.equal(a.cpu(), b), (name, options, tuple(x.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("zero_point", "hadamard"), OPTIONS)
def test_every_option(dtype, mode, zero_point, hadamard):
    for (channels, share), layout in itertools.product(
        ((576, 0.2), (1000, 0.5), (4096, 0.16), (2048, 0.0), (384, 1.0)), LAYOUTS
    ):
        if layout == "sm80" and zero_point:
            continue
        blocks = BlockLayout.of(channels, round(share * -(-channels // BLOCK)))
        for permutation in (None, permutation_of(blocks)):
            assert_same(
                activations(13, channels, dtype),
                blocks,
                permutation,
                mode=mode,
                zero_point=zero_point,
                hadamard=hadamard,
                layout=layout,
            )


@pytest.mark.parametrize("mode", MODES)
def test_odd_token_counts(mode):
    blocks = BlockLayout.of(576, 1)
    for tokens in range(1, 258, 2):
        assert_same(activations(tokens, 576, torch.bfloat16), blocks, None, mode=mode)


@pytest.mark.parametrize("channels", [1, 3, 127, 128, 129, 255, 1001, 4097])
def test_channel_counts_at_padding_edges(channels):
    blocks = BlockLayout.of(channels, (channels > 128) * 1)
    for permutation, layout in itertools.product((None, permutation_of(blocks)), LAYOUTS):
        assert_same(activations(9, channels, torch.float16), blocks, permutation, layout=layout)


@pytest.mark.parametrize("channels", [8192, 11008, 14336, 16384, 28672, 29568, 32768, 33000, 49152])
@pytest.mark.parametrize("hadamard", [False, True])
def test_wide_rows(channels, hadamard):
    blocks = BlockLayout.of(channels, channels // BLOCK // 6)
    for tokens, permutation in ((5, permutation_of(blocks)), (300, None)):
        x = activations(tokens, channels, torch.bfloat16)
        assert_same(x, blocks, permutation, hadamard=hadamard)


def test_strided_and_misaligned_rows():
    blocks = BlockLayout.of(512, 1)
    wide = activations(33, 1031, torch.float16).cuda()
    for x in (wide[:, :512], wide[:, 1:513], wide[::2, 8:520], wide[:, :1024][:, 512:]):
        assert_same(x, blocks, permutation_of(blocks))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("zero_point", [False, True])
def test_extreme_values(mode, zero_point):
    blocks = BlockLayout.of(512, 1)
    x = torch.zeros(10, 512)
    x[1] = 65504.0
    x[2, 5], x[2, 500] = -65504.0, 65504.0
    x[3, :128] = torch.randn(128)  # the other blocks stay zero
    x[4] = torch.arange(512) % 15 - 7.0  # codes themselves
    x[5] = (torch.arange(512) % 29 - 14) / 2.0  # ties at scale 1
    x[5, 0] = 7.0
    x[6] = -torch.rand(512)
    x[7] = torch.rand(512) + 1
    x[8] = 6e-8
    x[9] = torch.randn(512) * 1e-5
    for dtype in DTYPES:
        for layout in ("rows", "sm90"):
            assert_same(x.to(dtype), blocks, None, mode=mode, zero_point=zero_point, layout=layout)
    tiny = (torch.randn(8, 512) * 1e-37).bfloat16()  # scales are denormal
    assert_same(tiny, blocks, None, mode=mode, zero_point=zero_point)


def test_ties_round_to_even_for_any_scale():
    """Quotients within a few ulp of k + 1/2 are where a reciprocal would go astray."""
    blocks = BlockLayout.of(1024, 4)
    scale = torch.rand(4096, 1) * 3 + 0.01
    x = (torch.randint(-127, 127, (4096, 1024)) + 0.5) * scale
    x[:, :512] /= 18
    x[:, ::128] = 127 * scale
    for dtype in DTYPES:
        assert_same(x.to(dtype), blocks, None)


def test_nan_stays_in_its_token():
    blocks = BlockLayout.of(512, 1)
    x = activations(9, 512, torch.float16)
    bad = x.clone()
    bad[4] = float("nan")
    expected = quantize_activations(x.cuda(), blocks)
    found = quantize_activations(bad.cuda(), blocks)
    others = [t for t in range(9) if t != 4]
    assert torch.equal(found.operand[:, others], expected.operand[:, others])
    assert torch.equal(found.scales[:, others], expected.scales[:, others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rmsnorm_equals_separate_operators(dtype):
    """Squares of small integers add exactly in any order, so that every bit must agree."""
    blocks = BlockLayout.of(4096, 5)
    permutation = permutation_of(blocks).cuda()
    weight = torch.rand(4096).to(dtype).cuda()
    for tokens in (1, 37, 300):
        x, residual = torch.randint(-4, 5, (2, tokens, 4096)).to(dtype).cuda()
        for given in (None, residual):
            h = x if given is None else x + given
            inverse = torch.rsqrt(h.float().pow(2).mean(1, keepdim=True) + 1e-5)
            normed = (h.float() * inverse).to(dtype) * weight
            expected = quantize_activations(normed, blocks, permutation)
            found, total = rmsnorm_quantize(x, weight, 1e-5, blocks, given, permutation)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            assert total is None if given is None else torch.equal(total, h)


def test_rmsnorm_of_random_values_is_close():
    blocks = BlockLayout.of(1000, 2)
    x, weight = torch.randn(17, 1000).half().cuda(), torch.rand(1000).half().cuda()
    found, _ = rmsnorm_quantize(x, weight, 1e-6, blocks, layout="rows")
    expected, _ = rmsnorm_quantize(x.cpu(), weight.cpu(), 1e-6, blocks, layout="rows")
    difference = (found.operand.cpu().int() - expected.operand.int()).abs()
    assert difference.max() <= 1
    assert difference.float().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [576, 14336])
def test_silu_equals_separate_operators(dtype, channels):
    blocks = BlockLayout.of(channels, 1)
    both = (torch.randn(19, 2 * channels) * 4).to(dtype).cuda()
    gate, up = both.chunk(2, dim=1)
    expected = quantize_activations(torch.nn.functional.silu(gate) * up, blocks)
    found = silu_quantize(gate, up, blocks)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dependent_launch", [False, True])
def test_chain_in_a_cuda_graph(dependent_launch):
    blocks = BlockLayout.of(4096, 5)
    x, weight = torch.randn(3, 4096).half().cuda(), torch.rand(4096).half().cuda()

    def chain():
        _, h = rmsnorm_quantize(x, weight, 1e-5, blocks, x, dependent_launch=dependent_launch)
        out = silu_quantize(h, h, blocks, dependent_launch=dependent_launch)
        return h, out

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h, out = chain()
    for _ in range(20):
        x.normal_()
        graph.replay()
        expected = quantize_activations(torch.nn.functional.silu(x + x) * (x + x), blocks)
        assert torch.equal(h, x + x)
        assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
