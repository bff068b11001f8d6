# SPDX-License-Identifier: Apache-2.0
"""Weights and calibration inputs that the oracles and the tests both quantize.

Drawn by numpy's RandomState, whose stream is frozen, so that a fixture needs no inputs of its own;
``digest`` tells whether that still holds.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from comet.data.windows import text_windows
from comet.methods.method import LayerInput, watch_inputs
from comet.models.families import InputGroup
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream

GROUP = 64
TOKENS = 1024
MODEL_LAYER, MODEL_WINDOWS, MODEL_CONTEXT = 10, 4, 512


@dataclass
class Problem:
    """Linears that read one input.

    Attributes:
        x: fp32 [tokens, K], calibration inputs.
        weights: fp32 [N, K] by name.
    """

    x: torch.Tensor
    weights: dict[str, torch.Tensor]

    def layer_input(self) -> LayerInput:
        """What calibration would have seen of ``x``."""
        size = self.x.abs()
        return LayerInput(
            InputGroup("attn_in", tuple(self.weights)),
            size.amax(dim=0),
            size.mean(dim=0),
            self.x.t() @ self.x / len(self.x),
            self.x,
        )

    def thinned(self, stride: int) -> "Problem":
        """The same linears on every ``stride``-th token."""
        return Problem(self.x[::stride], self.weights)

    def error(self, name: str, restored: torch.Tensor) -> float:
        """Squared output error of restored weights as a share of the output's energy."""
        return self.output_error(name, self.x.double() @ restored.double().t())

    def output_error(self, name: str, output: torch.Tensor) -> float:
        """Squared error of an output [tokens, N] as a share of the exact output's energy."""
        exact = self.x.double() @ self.weights[name].double().t()
        return float((output.double() - exact).square().sum() / exact.square().sum())


def synthetic() -> dict[str, Problem]:
    """Correlated inputs with outlier channels, and heavy-tailed weights."""
    return {
        "shared": _synthetic(0, 256, {"q_proj": 64, "k_proj": 64, "v_proj": 64}),
        "single": _synthetic(1, 512, {"down_proj": 64}),
    }


def _synthetic(seed: int, channels: int, linears: dict[str, int]) -> Problem:
    draw = np.random.RandomState(seed)
    rank = channels // 4
    x = draw.standard_normal((TOKENS, rank)) @ draw.standard_normal((rank, channels)) / rank**0.5
    x += 0.3 * draw.standard_normal((TOKENS, channels))
    x *= np.exp(0.5 * draw.standard_normal(channels))
    x[:, draw.permutation(channels)[: channels // 64]] *= 20
    weights = {name: draw.standard_t(5, (rows, channels)) * 0.05 for name, rows in linears.items()}
    return Problem(_float(x), {name: _float(weight) for name, weight in weights.items()})


def _float(array: np.ndarray) -> torch.Tensor:
    # Through fp16, so that the last bits of another machine's arithmetic do not show.
    return torch.from_numpy(array.astype(np.float16).astype(np.float32))


def of_model(model: Path, calibration: Path) -> dict[str, Problem]:
    """One layer of a model on a calibration text, by input name."""
    folder = ModelFolder(model)
    windows = text_windows(
        folder.tokenizer(), calibration, "\n\n", MODEL_CONTEXT, range(MODEL_WINDOWS)
    )
    for index, layer, run in LayerStream(folder, windows, "cpu", torch.float32):
        if index == MODEL_LAYER:
            inputs = watch_inputs(layer, folder.family, run, windows.numel())
            return {name: _of_input(layer, watched) for name, watched in inputs.items()}
    raise ValueError(f"{model} has no layer {MODEL_LAYER}")


def _of_input(layer: torch.nn.Module, watched: LayerInput) -> Problem:
    weights = {
        name.rpartition(".")[2]: layer.get_submodule(name).weight.detach().float().clone()
        for name in watched.group.linears
    }
    return Problem(watched.sample, weights)


def digest(problems: dict[str, Problem]) -> str:
    """SHA-256 of all inputs and weights."""
    sha = hashlib.sha256()
    for _, problem in sorted(problems.items()):
        for tensor in (problem.x, *(problem.weights[name] for name in sorted(problem.weights))):
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()
