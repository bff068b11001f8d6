# SPDX-License-Identifier: Apache-2.0
"""GPTQ against gptqmodel and llm-compressor, on equal weights and inputs."""

from collections.abc import Iterable

import pytest
import torch
from problems import GROUP, Problem

from comet.methods.gptq import gptq_weight

SETTINGS = {
    "natural": {},
    "walk": {"grouping": "walk"},
    "natural-order": {"act_order": False},
    "symmetric": {"symmetric": True},
    "channel": {"group": None},
}


def rounded(problem: Problem, name: str, configuration: str) -> torch.Tensor:
    settings = {"group": GROUP} | SETTINGS[configuration]
    return gptq_weight(problem.weights[name], problem.layer_input().moment, **settings)


def errors_of(problems: dict[str, Problem], cases: Iterable[str]) -> dict[str, float]:
    """GPTQ's output error of each case, ``library.configuration.weight``."""
    found = {}
    for case in cases:
        _, configuration, name = case.split(".", 2)
        (problem,) = (problem for problem in problems.values() if name in problem.weights)
        found[case] = problem.error(name, rounded(problem, name, configuration))
    return found


def test_the_errors_are_the_libraries(drawn, oracle):
    expected = oracle("gptq").errors
    assert {case.split(".")[1] for case in expected} == set(SETTINGS)
    assert errors_of(drawn, expected) == pytest.approx(expected, rel=0.01)


@pytest.mark.needs_model
def test_the_errors_on_the_real_model_are_the_libraries(of_the_model, oracle):
    expected = oracle("gptq").model_errors
    assert {case.split(".")[1] for case in expected} == set(SETTINGS)
    assert errors_of(of_the_model, expected) == pytest.approx(expected, rel=0.01)


def test_nearly_every_weight_is_the_libraries(drawn, oracle):
    weights = oracle("gptq").weights
    for problem in drawn.values():
        for name, weight in problem.weights.items():
            for configuration in ("natural", "natural-order"):
                theirs = weights[f"gptqmodel.{configuration}.{name}"].float()
                same = (rounded(problem, name, configuration) - theirs).abs() < 1e-3
                assert same.float().mean() > 0.99
                assert (theirs - weight).abs().max() > 1e-2
