# SPDX-License-Identifier: Apache-2.0
"""Linears that read one input round it once, and never an old one."""

import torch

from comet.fmpq.shared_input import SharedInput
from comet.methods.linear import ActivationGrid, Divide, FakeLinear, share_input

GRID = ActivationGrid(bits=4)


def linears(scales=(1.0, 1.0)) -> list[FakeLinear]:
    generator = torch.Generator().manual_seed(0)
    return [
        FakeLinear(
            torch.randn(3, 8, generator=generator), None, GRID, (Divide(torch.full((8,), scale)),)
        )
        for scale in scales
    ]


def test_an_input_is_rounded_once_for_its_readers():
    seen = []

    def make(x):
        seen.append(x)
        return x + 1

    shared, x, y = SharedInput(readers=2), torch.zeros(4), torch.ones(4)
    assert shared.rounded(x, make) is shared.rounded(x, make)
    assert len(seen) == 1
    # Both have read it, so it is not kept.
    assert torch.equal(shared.rounded(x, make), x + 1)
    assert len(seen) == 2
    assert torch.equal(shared.rounded(y, make), y + 1)
    y.add_(1)
    assert torch.equal(shared.rounded(y, make), y + 1)


def test_outputs_are_those_of_linears_alone():
    x = torch.randn(5, 8)
    expected = [linear(x) for linear in linears()]
    shared = linears()
    share_input(shared)
    assert shared[0].shared is shared[1].shared
    assert all(torch.equal(one(x), other) for one, other in zip(shared, expected, strict=True))


def test_linears_that_round_differently_do_not_share():
    unlike = linears(scales=(1.0, 2.0))
    share_input(unlike)
    assert unlike[0].shared is not unlike[1].shared
