# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant against torchao, on equal weights and inputs."""

import pytest
import torch
from problems import Problem

from comet.methods.linear import ActivationGrid, Divide, FakeLinear, transformed_weight
from comet.methods.rtn import round_weight
from comet.methods.smoothquant import migration_scale


def scale_of(problem: Problem) -> torch.Tensor:
    weights = list(problem.weights.values())
    return migration_scale(problem.layer_input().absmax, weights, 0.5)


def compare(problems: dict[str, Problem], errors: dict[str, float]) -> None:
    seen = 0
    for problem in problems.values():
        transforms = (Divide(scale_of(problem)),)
        for name, weight in problem.weights.items():
            if f"torchao.{name}" not in errors:
                continue
            rounded = round_weight(transformed_weight(weight, transforms), 8, None)
            linear = FakeLinear(rounded, None, ActivationGrid(bits=8), transforms)
            ours = problem.output_error(name, linear(problem.x))
            assert ours == pytest.approx(errors[f"torchao.{name}"], rel=0.02), name
            seen += 1
    assert seen == len(errors)


def test_the_errors_are_the_librarys(drawn, oracle):
    compare(drawn, oracle("smoothquant").errors)


@pytest.mark.needs_model
def test_the_errors_on_the_real_model_are_the_librarys(of_the_model, oracle):
    compare(of_the_model, oracle("smoothquant").model_errors)


def test_the_scale_is_the_librarys(drawn, oracle):
    torch.testing.assert_close(
        scale_of(drawn["shared"]), oracle("smoothquant").weights["shared"], rtol=1e-4, atol=1e-6
    )
