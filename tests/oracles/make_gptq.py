# SPDX-License-Identifier: Apache-2.0
"""GPTQ by gptqmodel and by llm-compressor, on the problems of ``problems.py``; see README.md."""

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.quantization.gptq import GPTQ
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight
from oracle_files import arguments, both_problems, write_fixture
from problems import GROUP, Problem

# What differs from 4 bits, groups of GROUP, asymmetric, act-order, groups fixed before the walk.
CONFIGURATIONS = {
    "natural": {},
    "walk": {"static_groups": False},
    "natural-order": {"desc_act": False},
    "symmetric": {"sym": True},
    "channel": {"group_size": -1},
}


def by_gptqmodel(problem: Problem, weight: torch.Tensor, changes: dict) -> torch.Tensor:
    settings = {"bits": 4, "group_size": GROUP, "sym": False, "desc_act": True}
    settings |= {
        "static_groups": True,
        "act_group_aware": False,
        "damp_percent": 0.01,
        "offload_to_disk": False,
    }
    settings |= changes
    static = settings.pop("static_groups") and settings["group_size"] > 0
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.clone()
    config = QuantizeConfig(**settings)
    config.static_groups = static
    task = GPTQ(linear, config)
    task.quantizer.configure(perchannel=True)
    task.add_batch(problem.x[None], None)
    # Groups are found on whole blocks, so a block must not be longer than a group.
    return task.quantize(blocksize=GROUP)[0].float()


def by_llmcompressor(problem: Problem, weight: torch.Tensor) -> torch.Tensor:
    args = QuantizationArgs(num_bits=4, symmetric=False, group_size=GROUP, actorder="weight")
    groups = weight.unflatten(1, (-1, GROUP))
    scale, zero = calculate_qparams(groups.amin(dim=2), groups.amax(dim=2), args)
    hessian = 2 * problem.x.t() @ problem.x / len(problem.x)
    restored, _, fell_back = quantize_weight(
        weight[None].clone(), hessian[None], scale[None], zero[None], None, args
    )
    assert not fell_back.any()
    return restored[0]


def run(problems: dict[str, Problem]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    restored, errors = {}, {}
    for problem in problems.values():
        for name, weight in problem.weights.items():
            made = {
                f"gptqmodel.{key}.{name}": by_gptqmodel(problem, weight, changes)
                for key, changes in CONFIGURATIONS.items()
            }
            made[f"llmcompressor.natural.{name}"] = by_llmcompressor(problem, weight)
            errors |= {key: problem.error(name, value) for key, value in made.items()}
            restored |= made
    return restored, errors


if __name__ == "__main__":
    drawn, model = both_problems(arguments())
    weights, drawn_errors = run(drawn)
    weights = {
        key: value.half() for key, value in weights.items() if key.startswith("gptqmodel.natural")
    }
    write_fixture(
        "gptq",
        ("gptqmodel", "llmcompressor", "compressed-tensors"),
        drawn,
        weights,
        drawn_errors,
        run(model)[1],
        f"4 bits, groups of {GROUP}, damping 1 %; what differs: {CONFIGURATIONS}",
    )
