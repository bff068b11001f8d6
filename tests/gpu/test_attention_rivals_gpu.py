# SPDX-License-Identifier: Apache-2.0
"""Rivals of the attention benchmark compute attention over the cache that they are given."""

import inspect

import pytest
import torch

from comet.speed.attention_backends import AttentionShape, attention_backend_of
from comet.speed.backends import Unavailable
from comet.speed.timer import TimerOptions, time_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DEVICE = torch.device("cuda")
SHAPE = AttentionShape(batch=3, context=320, heads=16, kv_heads=4, head_dim=128)
BRIEF = TimerOptions(replays=2, warm_up=1, pause=0.0)


def loaded(name: str):
    torch.manual_seed(0)
    try:
        return attention_backend_of(name).load(SHAPE, DEVICE)
    except Unavailable as missing:
        pytest.skip(str(missing))


def operands(call) -> dict:
    """What a call closes over, its default arguments and those of the function it calls."""
    found = dict(inspect.getclosurevars(call).nonlocals)
    for value in list(found.values()):
        if inspect.isfunction(value):
            found |= inspect.getclosurevars(value).nonlocals
    parameters = inspect.signature(call).parameters.values()
    return found | {p.name: p.default for p in parameters}


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """float64 attention: query [batch, heads, D], K and V [batch, tokens, kv_heads, D]."""
    k, v = (t.double().repeat_interleave(SHAPE.group, dim=2) for t in (keys, values))
    scores = torch.einsum("bhd,bthd->bht", query.double(), k) * SHAPE.head_dim**-0.5
    return torch.einsum("bht,bthd->bhd", scores.softmax(-1), v)


def paged(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Pages of each sequence in order: [batch, context, kv_heads, ...]."""
    return cache[table.long()].flatten(1, 2)[:, : SHAPE.context]


@pytest.mark.parametrize(("name", "bound"), [("vllm-fa3-bf16", 0.01), ("vllm-fa3-fp8", 0.1)])
def test_flash_attention_3(name, bound):
    workload = loaded(name)
    found = operands(workload.calls[0])
    keys, values = (paged(cache, found["t"]).float() for cache in found["c"])
    expected = attend(found["query"].float(), keys, values)
    for _ in range(2):  # the shared schedule serves more than one call
        out = workload.calls[0]()
        assert (out.double() - expected).abs().max() < bound * expected.abs().max()
    assert time_graph(workload.calls, BRIEF)


def test_turboquant():
    workload = loaded("vllm-turboquant-4bit")
    found, dim = operands(workload.calls[0]), SHAPE.head_dim
    slots, fixed = paged(found["c"], found["t"]), found["fixed"]

    def halves(first: int) -> torch.Tensor:
        return slots[..., first : first + 2].contiguous().view(torch.float16).float()

    def codes(first: int) -> torch.Tensor:
        packed = slots[..., first : first + dim // 2].long()
        return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)

    keys = fixed["centroids"][codes(0)]
    keys = keys / keys.norm(dim=-1, keepdim=True) * halves(dim // 2)
    values = codes(dim // 2 + 2) * halves(dim + 2) + halves(dim + 4)
    query = found["query"].float() @ fixed["PiT"]
    expected = attend(query, keys, values)
    out = workload.calls[0]()
    assert (out.double() - expected).abs().max() < 0.01 * expected.abs().max()
    assert time_graph(workload.calls, BRIEF)


@pytest.mark.parametrize("name", ["sdpa-bf16", "comet-kv4"])
def test_the_others_run_in_a_graph(name):
    workload = loaded(name)
    assert workload.calls[0]().isfinite().all()
    assert time_graph(workload.calls, BRIEF)
    for calls in workload.besides.values():
        assert time_graph(calls, BRIEF)
