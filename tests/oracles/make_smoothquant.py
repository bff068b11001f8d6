# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant: torchao's smoothing scale, rounded on torch's own observers; see README.md."""

import torch
from oracle_files import arguments, both_problems, write_fixture
from problems import Problem
from torch.ao.quantization.observer import PerChannelMinMaxObserver
from torchao.prototype.smoothquant.core import SmoothQuantObserver

# The inputs that follow a norm, the ones that are smoothed.
SMOOTHED = ("shared", "attn_in", "mlp_in")


def smoothing_scale(problem: Problem) -> torch.Tensor:
    observer = SmoothQuantObserver(torch.cat(list(problem.weights.values())), alpha=0.5)
    observer(problem.x)
    return observer.calculate_qparams()[0]


def rounded(x: torch.Tensor) -> torch.Tensor:
    """INT8 with a scale a row, absmax / 127 as in the paper's equation 1."""
    observer = PerChannelMinMaxObserver(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-127, quant_max=127
    )
    observer(x)
    scale, zero = observer.calculate_qparams()
    return torch.fake_quantize_per_channel_affine(x, scale, zero.int(), 0, -127, 127)


def w8a8_output(problem: Problem, name: str, scale: torch.Tensor) -> torch.Tensor:
    """Output of a linear with a scale a token and output channel."""
    return rounded(problem.x / scale).double() @ rounded(problem.weights[name] * scale).double().t()


def run(problems: dict[str, Problem]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    scales, errors = {}, {}
    for key, problem in problems.items():
        if key not in SMOOTHED:
            continue
        scale = scales[key] = smoothing_scale(problem)
        for name in problem.weights:
            output = w8a8_output(problem, name, scale)
            errors[f"torchao.{name}"] = problem.output_error(name, output)
    return scales, errors


if __name__ == "__main__":
    drawn, model = both_problems(arguments())
    drawn_scales, drawn_errors = run(drawn)
    write_fixture(
        "smoothquant",
        ("torchao",),
        drawn,
        drawn_scales,
        drawn_errors,
        run(model)[1],
        "alpha 0.5; INT8, a scale a token and output channel; tensors are the smoothing scales",
    )
