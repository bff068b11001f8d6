# SPDX-License-Identifier: Apache-2.0
"""AWQ by AutoAWQ's own searches, on the problems of ``problems.py``; see README.md."""

import torch
from awq.quantize.quantizer import AwqQuantizer
from oracle_files import arguments, both_problems, write_fixture
from problems import GROUP, Problem

# Linears that AutoAWQ does not clip.
UNCLIPPED = ("q_proj", "k_proj")
# The library's clip search holds every product of a token and a weight.
MODEL_INPUTS, MODEL_STRIDE = ("attn_in", "attn_out", "mlp_out"), 8


class Beside(torch.nn.Module):
    """Linears that read one input, as one module for the library to inspect."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleDict()
        for name, weight in problem.weights.items():
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
            self.linears[name] = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(x) for linear in self.linears.values()], dim=-1)


def quantizer(group: int) -> AwqQuantizer:
    """The library's quantizer without a model: only its searches are called."""
    made = AwqQuantizer.__new__(AwqQuantizer)
    made.w_bit, made.group_size, made.zero_point, made.duo_scaling = 4, group, True, False
    made.n_parallel_calib_samples, made.max_chunk_memory = None, 2**30
    return made


@torch.no_grad()
def by_autoawq(problem: Problem, group: int) -> dict[str, torch.Tensor]:
    """Restored weights in the terms of the unscaled input."""
    library, module = quantizer(group), Beside(problem)
    linears = list(module.linears.values())
    mean = problem.x.abs().mean(dim=0)
    scale = library._compute_best_scale(
        problem.x, torch.zeros(1), mean, module, linears, module(problem.x)
    )
    restored = {}
    for name, linear in module.linears.items():
        weight = linear.weight * scale
        if name not in UNCLIPPED:
            limit = library._compute_best_clip(weight, problem.x / scale, n_sample_token=10**9)
            groups = weight.reshape(*limit.shape[:2], -1).clamp(-limit, limit)
            weight = groups.reshape(weight.shape)
        restored[name] = library.pseudo_quantize_tensor(weight)[0] / scale
    return restored


def run(problems: dict[str, Problem]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    restored, errors = {}, {}
    for problem in problems.values():
        for configuration, group in (("group", GROUP), ("channel", problem.x.shape[1])):
            for name, weight in by_autoawq(problem, group).items():
                key = f"autoawq.{configuration}.{name}"
                restored[key], errors[key] = weight, problem.error(name, weight)
    return restored, errors


if __name__ == "__main__":
    drawn, model = both_problems(arguments())
    weights, drawn_errors = run(drawn)
    thin = {name: model[name].thinned(MODEL_STRIDE) for name in MODEL_INPUTS}
    write_fixture(
        "awq",
        ("autoawq",),
        drawn,
        {key: weight.half() for key, weight in weights.items() if ".group." in key},
        drawn_errors,
        run(thin)[1],
        f"4 bits, asymmetric, groups of {GROUP} or a channel; scale and clip search; "
        f"of the model {MODEL_INPUTS}, every {MODEL_STRIDE}th token",
    )
