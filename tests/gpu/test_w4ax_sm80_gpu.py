# SPDX-License-Identifier: Apache-2.0
"""The sm_80 W4Ax kernel gives the reference's bits; newer GPUs run it through compute_80 PTX."""

import ctypes

import pytest
import torch
from sm80_inputs import activations, random_weight

from comet.formats.activations import quantize_activations
from comet.formats.blocks import BLOCK, BlockLayout, natural_permutation
from comet.formats.weights import pack_weight
from comet.kernels import activations as operators
from comet.kernels import w4ax_sm80_call
from comet.kernels.library import load
from comet.kernels.operands import operand_of
from comet.kernels.reference import w4ax_linear_reference
from comet.kernels.w4ax_sm80 import prepare_weight_sm80, w4ax_linear_sm80
from comet.schedule.stream_k import StreamK

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TOKENS = (1, 2, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 300)


@pytest.fixture(scope="module", autouse=True)
def interleaved() -> bool:
    """What this library reads; a build variant reads weights in natural order."""
    return w4ax_sm80_call.instances(load())[0].interleaved


def poison() -> None:
    """Fill what the next allocations get with 0x5a, so that whatever is not written shows."""
    for size in (1 << 12, 1 << 16, 1 << 19, 1 << 22, 1 << 24, 1 << 26):
        torch.full((size,), 0x5A, dtype=torch.uint8, device="cuda")


def assert_exact(quantized, weight, interleaved, dtype=torch.float16, bias=None):
    """Kernel and reference agree in every bit; the reference runs on the GPU's integers."""
    operand = operand_of(quantized, "sm80")
    operand = type(operand)(*(t.cuda() for t in operand))
    prepared = prepare_weight_sm80(weight, "cuda", interleaved)
    on_gpu = None if bias is None else bias.cuda()
    poison()
    found = w4ax_linear_sm80(operand, prepared, on_gpu, dtype)
    expected = w4ax_linear_reference(quantized, weight, bias, dtype)
    assert torch.equal(found.cpu(), expected), (tuple(found.shape), weight.layout)


def problem(tokens, channels, layout):
    x = activations(tokens, layout.channels)
    return quantize_activations(x, layout, natural_permutation(layout)), random_weight(
        channels, layout
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", [BlockLayout(640, 4, 1), BlockLayout(300, 0, 3)])
def test_token_counts(layout, dtype, interleaved):
    for tokens in TOKENS:
        bias = torch.randn(136) if tokens % 2 else None
        assert_exact(*problem(tokens, 136, layout), interleaved, dtype, bias)


@pytest.mark.parametrize("channels", [8, 120, 128, 256, 1000])
def test_channel_counts(channels, interleaved):
    for tokens in (1, 40, 130):
        assert_exact(*problem(tokens, channels, BlockLayout(512, 3, 1)), interleaved)


@pytest.mark.parametrize("inputs", [1, 127, 128, 129, 1001, 4096])
@pytest.mark.parametrize("share", [0.0, 0.16, 0.75, 1.0])
def test_input_widths_and_shares(inputs, share, interleaved):
    blocks = -(-inputs // BLOCK)
    layout = BlockLayout.of(inputs, round(share * blocks))
    for tokens in (3, 70):
        assert_exact(*problem(tokens, 264, layout), interleaved)


@pytest.mark.parametrize("tokens", [5, 24, 64, 200])
def test_any_number_of_runs(tokens, interleaved, monkeypatch):
    """However tiles are cut, and again and again: the counters are left at zero."""
    quantized, weight = problem(tokens, 392, BlockLayout(1100, 6, 3))
    instance = w4ax_sm80_call.plan(tokens, w4ax_sm80_call.instances(load()))
    tiles = -(-tokens // instance.tokens) * 4
    for runs in (1, 2, 3, 5, 7, 11, 16, tiles * 12 // 2):
        work = StreamK(tiles, 6, 3, min(runs, tiles * 12 // 2))
        monkeypatch.setattr(w4ax_sm80_call, "work_of", lambda *_, work=work: work)
        for _ in range(2):
            assert_exact(quantized, weight, interleaved)


def extreme_codes(tokens, channels, layout):
    """Every activation code at its end of the range, every weight at its own, signs mixed."""
    signs = torch.randint(0, 2, (tokens, layout.padded)) * 2 - 1
    signs[0] = 1
    limit = torch.full((layout.padded,), 127)
    limit[: layout.int4_channels] = 7
    scale = torch.ones(tokens, layout.int4_blocks), torch.ones(tokens, layout.int8_blocks)
    quantized = quantize_activations(
        torch.zeros(tokens, layout.padded), layout, None, "token_block_multiple"
    )
    quantized.codes.copy_((signs * limit).to(torch.int8))
    quantized.multiples.fill_(18)
    quantized.base.copy_(scale[0] * 1e-4)
    quantized.scale8.copy_(scale[1] * 1e-4)
    zero = torch.tensor([0, 15, 8, 7, 1, 14]).repeat(channels, layout.blocks)
    zero = zero.flatten()[: channels * layout.blocks].view(channels, -1)
    widest = torch.maximum(zero, 15 - zero)
    group_scale = (127 // widest).clamp(max=17)
    codes = torch.where(zero > 7, 0, 15)[..., None].expand(-1, -1, BLOCK).flatten(1)
    return quantized, pack_weight(
        layout,
        natural_permutation(layout),
        codes,
        group_scale.to(torch.uint8),
        zero,
        torch.full((channels,), 1e-3),
    )


@pytest.mark.parametrize("tokens", [1, 64, 128])
def test_extreme_codes_and_scales(tokens, interleaved):
    for layout in (BlockLayout(4096, 27, 5), BlockLayout(29568, 116, 115)):
        quantized, weight = extreme_codes(tokens, 24, layout)
        assert_exact(quantized, weight, interleaved, torch.bfloat16)


def test_quantizer_and_gemm_equal_the_cpu_operators(interleaved):
    layout, x = BlockLayout(1000, 6, 2), activations(37, 1000)
    weight = random_weight(264, layout)
    for mode in ("token_block_multiple", "token"):
        y = []
        for device in ("cuda", "cpu"):
            prepared = prepare_weight_sm80(weight, device, interleaved)
            operand = operators.quantize_activations(x.to(device), layout, mode=mode, layout="sm80")
            y.append(w4ax_linear_sm80(operand, prepared).cpu())
        assert torch.equal(*y)


def test_cuda_graph_and_streams(interleaved):
    layout = BlockLayout(2048, 13, 3)
    weight = prepare_weight_sm80(random_weight(512, layout), "cuda", interleaved)
    x = activations(20, 2048).cuda()

    def layer():
        return w4ax_linear_sm80(operators.quantize_activations(x, layout, layout="sm80"), weight)

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(5):
        x.normal_()
        expected = layer()
        graph.replay()
        assert torch.equal(y, expected)
        torch.cuda.synchronize()
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(layer())
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in found)


def test_argument_struct_has_the_size_of_the_library(interleaved):
    library = load()
    launcher = library.function("comet_w4ax_sm80", ctypes.c_void_p, ctypes.c_void_p)
    arguments = w4ax_sm80_call.W4axSm80Args(size=1)
    assert "rebuild" in library.error_string(launcher(ctypes.addressof(arguments), None))


def test_weights_of_another_order_are_refused(interleaved):
    layout = BlockLayout(128, 1, 0)
    prepared = prepare_weight_sm80(random_weight(8, layout), "cuda", not interleaved)
    operand = operators.quantize_activations(activations(1, 128).cuda(), layout, layout="sm80")
    with pytest.raises(Exception, match="interleaved"):
        w4ax_linear_sm80(operand, prepared)
