# SPDX-License-Identifier: Apache-2.0
"""A decoder layer's linear parts as vLLM runs them: fused, overlapping, in graphs that share one
workspace. They give the bits of separate operators that run one after another."""

from dataclasses import replace

import pytest
import torch

from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.weights import pack_weight
from comet.kernels import workspace
from comet.kernels.linear import linear_kernel

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")]
HIDDEN, INNER = 4096, 14336
BATCHES = (512, 256, 64, 8)


def layer_of(n: int, k: int):
    """(kernel, tiles, scales) of a random layer with a fifth of its blocks in INT8."""
    layout = BlockLayout.of(k, k // 128 // 5)
    shape = n, layout.blocks
    weight = pack_weight(
        layout,
        natural_permutation(layout),
        torch.randint(0, 16, (n, layout.padded), dtype=torch.uint8),
        torch.randint(1, 16, shape, dtype=torch.uint8),
        torch.full(shape, 8, dtype=torch.uint8),
        torch.rand(n) * 1e-4 + 1e-5,
        "group_int",
    )
    kernel = linear_kernel(layout, "group_int", "token_block_multiple", device="cuda")
    return kernel, *kernel.prepare(weight, "cuda")


@pytest.fixture(scope="module")
def mlp():
    torch.manual_seed(0)
    return layer_of(2 * INNER, HIDDEN), layer_of(HIDDEN, INNER)


def separately(mlp, x, residual, gain):
    """Norm, gate and up, SiLU, down: each operator waits for the one in front."""
    (first, *up), (second, *down) = mlp
    total = x + residual
    mean = total.float().pow(2).mean(1, keepdim=True)
    normed = (total.float() * torch.rsqrt(mean + 1e-5)).to(x.dtype) * gain
    gate, other = first(normed, *up).chunk(2, dim=-1)
    return second(torch.nn.functional.silu(gate) * other, *down), total


def fused(mlp, x, residual, gain):
    """The same as vLLM's plugin launches it."""
    (first, *up), (second, *down) = mlp
    first, second = (replace(kernel, dependent_launch=True) for kernel in (first, second))
    operand, total = first.quantize_normed(x, gain, 1e-5, residual)
    gate, other = first.multiply(operand, *up, None, x.dtype).chunk(2, dim=-1)
    return second.multiply(second.quantize_gated(gate, other), *down, None, x.dtype), total


def close(found, expected):
    """Sums of squares are added in another order, so that a code may flip."""
    (y, total), (wanted, wanted_total) = found, expected
    assert torch.equal(total, wanted_total)
    assert (y - wanted).float().norm() < 0.01 * wanted.float().norm()


def test_graphs_that_share_a_workspace(mlp, monkeypatch):
    monkeypatch.setattr(workspace, "_of_graphs", {})
    device = torch.device("cuda", torch.cuda.current_device())
    workspace.share_between_graphs(device)
    gain = torch.rand(HIDDEN, device=device).bfloat16()
    pool, made = torch.cuda.graph_pool_handle(), {}
    for batch in BATCHES:
        x, residual = (torch.randn(batch, HIDDEN, device=device).bfloat16() for _ in range(2))
        eager = fused(mlp, x, residual, gain)
        close(eager, separately(mlp, x, residual, gain))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x
            for _ in range(3):
                y, _ = fused(mlp, y, residual, gain)
            out = fused(mlp, x, residual, gain)
        made[batch] = graph, out, eager, (x, residual)  # a graph does not keep what it reads
    # Not in the order of capture: a graph must find what its predecessor leaves behind.
    for batch in (64, 512, 8, 256, 64, 256, 512, 8):
        graph, out, eager, _ = made[batch]
        for tensor in out:
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, out, eager)), batch
    assert set(workspace._of_graphs) == {device}
