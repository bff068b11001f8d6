# SPDX-License-Identifier: Apache-2.0
"""The sm_90a W4Ax kernels give the reference's bits: every instance, every split, every edge."""

from dataclasses import replace

import pytest
import torch

from comet.errors import UserError
from comet.formats import activations as reference
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.weights import pack_weight
from comet.kernels import w4ax_call
from comet.kernels.activations import quantize_activations
from comet.kernels.layout_sm90 import tile_weights
from comet.kernels.library import load_for
from comet.kernels.operands import ActivationOperand, swizzled_blocks
from comet.kernels.plan_sm90 import choose
from comet.kernels.reference import w4ax_linear_reference
from comet.kernels.w4ax import prepare_weight, w4ax_linear
from comet.kernels.w4ax_block_scaled import prepare_block_scaled, w4ax_linear_block_scaled
from comet.kernels.w4ax_call import Plan, instances

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")]

SHARES = (0.0, 0.16, 0.75, 1.0)  # of INT8 blocks
SHAPES = ((256, 1152), (1000, 2048), (136, 640), (8, 128), (2056, 4096))  # N, K


def random_weight(n: int, k: int, int8_blocks: int, extreme: bool = False):
    """A group_int weight on the GPU whose integers span all of -128..127."""
    layout = BlockLayout.of(k, int8_blocks)
    s = torch.randint(1, 18, (n, layout.blocks))
    z = torch.randint(0, 16, (n, layout.blocks))
    if extreme:
        s, z = torch.full_like(s, 16), torch.where(s > 8, 8, 7)
    u = torch.randint(0, 16, (n, layout.blocks, 128))
    u = torch.maximum(torch.minimum(u, (z + 127 // s)[..., None]), (z - 128 // s)[..., None])
    if extreme:
        u = torch.where(z[..., None] == 8, torch.zeros_like(u), torch.full_like(u, 14))
    scale = torch.rand(n) * 1e-3 + 1e-4
    codes = u.clamp(0, 15).view(n, -1)
    weight = pack_weight(
        layout, natural_permutation(layout), codes, s.byte(), z.byte(), scale, "group_int"
    )
    return weight.to("cuda")


def random_operand(m: int, layout: BlockLayout, extreme: bool = False):
    """An operand of arbitrary int8 codes with its sums, and the codes themselves."""
    x = torch.randint(-127, 128, (m, layout.padded), device="cuda", dtype=torch.int8)
    if extreme:
        x = torch.where(x > 0, 127, -127).to(torch.int8)
        x[0] = 127
    split = layout.int4_channels
    sums = torch.stack([part.sum(1, dtype=torch.int32) for part in (x[:, :split], x[:, split:])])
    scales = torch.rand(2, m, device="cuda") * 1e-2 + 1e-4
    return ActivationOperand(swizzled_blocks(x), scales, sums, x.new_empty(0)), x


def expected(weight, operand, x, bias, dtype):
    """The contract's formula on exact integer sums (float64 holds them exactly)."""
    split, q = weight.layout.int4_channels, weight.integers().double()
    y = torch.zeros(x.shape[0], q.shape[0], device="cuda")
    if split > 0:
        y = operand.scales[0][:, None] * (x[:, :split].double() @ q[:, :split].t()).float()
    if split < x.shape[1]:
        y = y + operand.scales[1][:, None] * (x[:, split:].double() @ q[:, split:].t()).float()
    y = y * weight.channel_scale[None]
    return (y if bias is None else y + bias).to(dtype)


def run(plan, prepared, operand, bias, dtype):
    """One call with poisoned output."""
    m, n = operand.scales.shape[1], prepared.out_features
    out = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
    parts = (operand.operand, operand.scales, operand.sums)
    w4ax_call.w4ax(
        *parts,
        prepared.tiles,
        prepared.channel_scale,
        bias,
        prepared.layout.int4_blocks,
        out,
        plan,
    )
    torch.cuda.synchronize()
    return out


def every_plan(instance, m: int, n: int, blocks: int):
    """All kinds of cuts that an instance allows at this size."""
    if not instance.stream:
        for split in (1, 2, 3, 4, 5, 8):
            if split <= -(-blocks // 2):
                yield Plan(instance.name, split=split)
                yield Plan(instance.name, split=split, prefetch=8, dependent_launch=True)
        return
    tiles = instance.tiles(m, n)
    for grid in (1, 7, 132):
        for shared in {0, tiles, tiles // 2}:
            if shared * (blocks // 2) >= grid or shared == 0:
                yield Plan(instance.name, grid=grid, shared_tiles=shared)
                yield Plan(instance.name, grid=grid, shared_tiles=shared, stagger=2)


def instance_names():
    return sorted(instances(load_for(torch.device("cuda:0")))) if HOPPER else []


@pytest.mark.parametrize("name", instance_names())
def test_every_instance_and_cut_is_exact(name):
    instance = instances(load_for(torch.device("cuda:0")))[name]
    edges = (1, 5, instance.tokens - 1, instance.tokens, instance.tokens + 13)
    for n, k in SHAPES:
        for share in SHARES:
            weight = random_weight(n, k, round(share * -(-k // 128)))
            prepared = prepare_weight(weight, "cuda")
            bias = torch.randn(n, device="cuda") if share else None
            for m in edges:
                operand, x = random_operand(m, weight.layout)
                dtype = torch.bfloat16 if m % 2 else torch.float16
                want = expected(weight, operand, x, bias, dtype)
                for plan in every_plan(instance, m, n, weight.layout.blocks):
                    found = run(plan, prepared, operand, bias, dtype)
                    assert torch.equal(found, want), (n, k, m, share, plan)


def test_small_problems_of_every_instance():
    """Small enough for compute-sanitizer: ``-k small`` (csrc/README.md). Every ring goes round."""
    for name, instance in instances(load_for(torch.device("cuda:0"))).items():
        for n, k in ((72, 640), (200, 256 * (instance.stages + 1))):
            weight = random_weight(n, k, k // 512)
            prepared = prepare_weight(weight, "cuda")
            operand, x = random_operand(5, weight.layout)
            want = expected(weight, operand, x, None, torch.bfloat16)
            for plan in every_plan(instance, 5, n, weight.layout.blocks):
                if plan.grid <= 7:
                    found = run(plan, prepared, operand, None, torch.bfloat16)
                    assert torch.equal(found, want), (name, n, k, plan)


@pytest.mark.parametrize("share", SHARES)
def test_chosen_plans_at_many_sizes(share):
    for n, k in ((4096, 4096), (1032, 14336)):
        weight = random_weight(n, k, round(share * -(-k // 128)))
        prepared = prepare_weight(weight, "cuda")
        for m in (1, 2, 7, 8, 9, 17, 33, 63, 65, 100, 129, 200, 257, 511, 777, 1025, 2049, 4096):
            operand, x = random_operand(m, weight.layout)
            for allowed in (False, True):
                found = w4ax_linear(operand, prepared, dependent_launch=allowed)
                want = expected(weight, operand, x, None, torch.bfloat16)
                assert torch.equal(found, want), (n, k, m, share, allowed)


@pytest.mark.parametrize("share", SHARES)
def test_extreme_codes_and_scales(share):
    weight = random_weight(192, 29568, round(share * 231), extreme=True)
    prepared = prepare_weight(weight, "cuda")
    for m in (1, 33, 300):
        operand, x = random_operand(m, weight.layout, extreme=True)
        found = w4ax_linear(operand, prepared)
        assert torch.equal(found, expected(weight, operand, x, None, torch.bfloat16))


def test_chain_from_16_bit_activations_equals_the_reference():
    weight = random_weight(512, 1024, 2)
    prepared = prepare_weight(weight, "cuda")
    for m in (1, 50, 300):
        x = torch.randn(m, 1024, device="cuda", dtype=torch.bfloat16)
        operand = quantize_activations(x, weight.layout, dependent_launch=True)
        found = w4ax_linear(operand, prepared, dtype=torch.float16, dependent_launch=True)
        quantized = reference.quantize_activations(x.cpu(), weight.layout)
        want = w4ax_linear_reference(quantized, weight.to("cpu"), dtype=torch.float16)
        assert torch.equal(found.cpu(), want)


def test_tiles_on_the_gpu_equal_the_layout():
    for n, k in SHAPES:
        weight = random_weight(n, k, 0)
        fields = (weight.codes, weight.group_scale, weight.group_zero)
        assert torch.equal(prepare_weight(weight, "cuda").tiles, tile_weights(*fields))


def test_cuda_graph_and_compile():
    weight = random_weight(4096, 8192, 10)
    prepared = prepare_weight(weight, "cuda")
    operand, x = random_operand(64, weight.layout)
    want = expected(weight, operand, x, None, torch.bfloat16)
    compiled = torch.compile(lambda *parts: w4ax_linear(ActivationOperand(*parts), prepared) * 1)
    assert torch.equal(compiled(*operand), want)
    stream_plan = Plan("T64s2", grid=132, shared_tiles=32)
    out = torch.full((64, 4096), float("nan"), device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    parts = (*operand[:3], prepared.tiles, prepared.channel_scale, None)
    with torch.cuda.graph(graph):
        for _ in range(3):
            w4ax_call.w4ax(*parts, weight.layout.int4_blocks, out, stream_plan)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)


def test_bad_arguments_are_named():
    weight = random_weight(64, 256, 1)
    prepared = prepare_weight(weight, "cuda")
    operand, _ = random_operand(4, weight.layout)
    with pytest.raises(UserError, match="bias is torch.float16"):
        w4ax_linear(operand, prepared, bias=torch.zeros(64, device="cuda", dtype=torch.float16))
    with pytest.raises(UserError, match="dtype is torch.float32"):
        w4ax_linear(operand, prepared, dtype=torch.float32)
    with pytest.raises(UserError, match="scales is .* on cpu"):
        w4ax_linear(operand._replace(scales=operand.scales.cpu()), prepared)


def test_plans_fit_the_gpu():
    available = instances(load_for(torch.device("cuda:0")))
    for m in (1, 16, 64, 128, 256, 4096):
        plan = choose(m, 8192, 64, 132, available)
        assert available[plan.instance].tokens >= min(m, 128)


def block_scaled_mismatches(
    n: int, k: int, int8_blocks: int, tokens: tuple[int, ...], kind: str
) -> list[int]:
    """Token counts at which the block-scaled kernel has other bits than the reference."""
    weight = random_weight(n, k, int8_blocks)
    if kind == "group_fp":
        scale = torch.rand(n, weight.layout.blocks, device="cuda").half()
        weight = replace(weight, group_scale=scale, scale_kind="group_fp")
    prepared = prepare_block_scaled(weight, "cuda")
    bias = torch.randn(n, device="cuda")
    mismatches = []
    for m in tokens:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        operand = quantize_activations(x, weight.layout, mode="token_block")
        found = w4ax_linear_block_scaled(operand, prepared, bias, torch.float16)
        quantized = reference.quantize_activations(x.cpu(), weight.layout, mode="token_block")
        want = w4ax_linear_reference(quantized, weight.to("cpu"), bias.cpu(), torch.float16)
        if not torch.equal(found.cpu(), want):
            mismatches.append(m)
    return mismatches


@pytest.mark.parametrize("scale_kind", ["group_fp", "group_int"])
def test_block_scaled_kernel_equals_the_reference(scale_kind):
    for n, k, int8_blocks in ((256, 1152, 2), (72, 384, 0), (1000, 2048, 16)):
        tokens = (1, 7, 16, 17, 63, 200)
        assert not block_scaled_mismatches(n, k, int8_blocks, tokens, scale_kind), (n, k)


def test_small_problem_of_the_block_scaled_kernel():
    assert not block_scaled_mismatches(72, 2048, 4, (5, 21), "group_int")
