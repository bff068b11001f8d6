# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant against torchao, on equal weights and inputs."""

from collections.abc import Iterable

import pytest
import torch
from problems import Problem

from comet.methods.linear import ActivationGrid, Divide, FakeLinear, transformed_weight
from comet.methods.rtn import round_weight
from comet.methods.smoothquant import migration_scale


def scale_of(problem: Problem) -> torch.Tensor:
    weights = list(problem.weights.values())
    return migration_scale(problem.layer_input().absmax, weights, 0.5)


def error_of(problem: Problem, name: str) -> float:
    transforms = (Divide(scale_of(problem)),)
    rounded = round_weight(transformed_weight(problem.weights[name], transforms), 8, None)
    linear = FakeLinear(rounded, None, ActivationGrid(bits=8), transforms)
    return problem.output_error(name, linear(problem.x))


def errors_of(problems: dict[str, Problem], cases: Iterable[str]) -> dict[str, float]:
    """SmoothQuant's output error of each case, ``torchao.weight``."""
    found = {}
    for case in cases:
        name = case.removeprefix("torchao.")
        (problem,) = (problem for problem in problems.values() if name in problem.weights)
        found[case] = error_of(problem, name)
    return found


def test_the_errors_are_the_librarys(drawn, oracle):
    expected = oracle("smoothquant").errors
    assert len(expected) >= 2
    assert errors_of(drawn, expected) == pytest.approx(expected, rel=0.02)


@pytest.mark.needs_model
def test_the_errors_on_the_real_model_are_the_librarys(of_the_model, oracle):
    expected = oracle("smoothquant").model_errors
    assert len(expected) >= 2
    assert errors_of(of_the_model, expected) == pytest.approx(expected, rel=0.02)


def test_the_scale_is_the_librarys(drawn, oracle):
    torch.testing.assert_close(
        scale_of(drawn["shared"]), oracle("smoothquant").weights["shared"], rtol=1e-4, atol=1e-6
    )
