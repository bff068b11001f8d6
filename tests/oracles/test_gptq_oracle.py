# SPDX-License-Identifier: Apache-2.0
"""GPTQ against gptqmodel and llm-compressor, on equal weights and inputs."""

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


def compare(problems: dict[str, Problem], errors: dict[str, float]) -> None:
    seen = 0
    for problem in problems.values():
        for name in problem.weights:
            for key in (key for key in errors if key.endswith(f".{name}")):
                ours = problem.error(name, rounded(problem, name, key.split(".")[1]))
                assert ours == pytest.approx(errors[key], rel=0.01), key
                seen += 1
    assert seen == len(errors)


def test_the_errors_are_the_libraries(drawn, oracle):
    compare(drawn, oracle("gptq").errors)


@pytest.mark.needs_model
def test_the_errors_on_the_real_model_are_the_libraries(of_the_model, oracle):
    compare(of_the_model, oracle("gptq").model_errors)


def test_nearly_every_weight_is_the_libraries(drawn, oracle):
    weights = oracle("gptq").weights
    for problem in drawn.values():
        for name, weight in problem.weights.items():
            for configuration in ("natural", "natural-order"):
                theirs = weights[f"gptqmodel.{configuration}.{name}"].float()
                same = (rounded(problem, name, configuration) - theirs).abs() < 1e-3
                assert same.float().mean() > 0.99
                assert (theirs - weight).abs().max() > 1e-2
