# SPDX-License-Identifier: Apache-2.0
"""AWQ against AutoAWQ's searches, on equal weights and inputs."""

import pytest
import torch
from layer_inputs import block
from problems import GROUP, Problem

from comet.methods.awq import AWQ
from comet.models.families import FAMILIES

MODEL_INPUTS, MODEL_STRIDE = ("attn_in", "attn_out", "mlp_out"), 8


def restored(problem: Problem, group: int | None) -> dict[str, torch.Tensor]:
    """Weights that AWQ makes of a problem, in the terms of the unscaled input."""
    layer = torch.nn.Module()
    for name, weight in problem.weights.items():
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        setattr(layer, name, linear)
    made = AWQ("AWQ", group=group).quantize_layer(
        layer, FAMILIES["llama"], {"attn_in": problem.layer_input()}, block()
    )
    return {name: fake.weight / fake.transforms[0].scale for name, fake in made.items()}


def errors_of(problems: dict[str, Problem]) -> dict[str, float]:
    """AWQ's output error of each weight, by the names that the library's have."""
    return {
        f"autoawq.{key}.{name}": problem.error(name, weight)
        for problem in problems.values()
        for key, group in (("group", GROUP), ("channel", None))
        for name, weight in restored(problem, group).items()
    }


def test_the_errors_are_the_librarys(drawn, oracle):
    assert errors_of(drawn) == pytest.approx(oracle("awq").errors, rel=0.02)


@pytest.mark.needs_model
def test_the_errors_on_the_real_model_are_the_librarys(of_the_model, oracle):
    thin = {name: of_the_model[name].thinned(MODEL_STRIDE) for name in MODEL_INPUTS}
    assert errors_of(thin) == pytest.approx(oracle("awq").model_errors, rel=0.02)


def test_nearly_every_weight_is_the_librarys(drawn, oracle):
    weights = oracle("awq").weights
    for problem in drawn.values():
        for name, weight in restored(problem, GROUP).items():
            theirs = weights[f"autoawq.group.{name}"].float()
            assert ((weight - theirs).abs() < 2e-3).float().mean() > 0.98
