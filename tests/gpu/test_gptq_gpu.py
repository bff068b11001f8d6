# SPDX-License-Identifier: Apache-2.0
"""The column walk on a GPU: its CUDA graphs compute what its operators compute one by one."""

import pytest
import torch

from comet.fmpq.gptq import _graph_of, gptq_codes, round_block

pytestmark = pytest.mark.gpu


def parts(columns: int, rows: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    random = {"generator": generator, "device": "cuda"}
    block = torch.randn(columns, rows, **random)
    scale = torch.rand(columns, rows, **random) * 0.2 + 0.05
    zero = torch.randint(0, 16, (columns, rows), **random).float()
    factor = torch.randn(columns, columns, **random).triu(1) * 0.05 + torch.eye(
        columns, device="cuda"
    )
    return [block, scale, zero, torch.zeros_like(zero), torch.full_like(zero, 15), factor]


@pytest.mark.parametrize(("columns", "rows"), [(128, 576), (64, 192), (1, 8), (128, 4096)])
def test_a_graph_gives_the_bits_of_its_operators(columns, rows):
    graph = _graph_of(columns, rows, torch.device("cuda", torch.cuda.current_device()))
    for seed in (0, 1):
        given = parts(columns, rows, seed)
        kept = [part.clone() for part in given]
        found = [part.clone() for part in graph(*given)]
        assert all(torch.equal(a, b) for a, b in zip(given, kept, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(found, round_block(*kept), strict=True))


def test_codes_are_those_of_the_processor():
    torch.manual_seed(0)
    x = torch.randn(4096, 320)
    moment = x.t() @ x / len(x)
    weight = torch.randn(96, 320)
    fields = [torch.full((96, 320), value) for value in (0.3, 8.0, 0.0, 15.0)]
    on_cpu = gptq_codes(weight, moment, *fields)
    on_gpu = gptq_codes(weight.cuda(), moment.cuda(), *(field.cuda() for field in fields)).cpu()
    assert (on_cpu != on_gpu).float().mean() < 0.01
    assert (on_cpu - on_gpu).abs().max() <= 1
