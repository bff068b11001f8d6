# SPDX-License-Identifier: Apache-2.0
"""Random weights where ``load_format="dummy"`` of vLLM leaves zeros, or makes them.

vLLM draws weights in floating point only, all between -0.001 and 0.001. Packed 4-bit ones stay what
fresh memory holds, mostly zeros. Norms that small make keys and values of 1e-5, which are zeros in
an FP8 cache. A GPU that multiplies zeros draws less power and keeps a higher clock: such an engine
would be timed faster than it is. This is a plugin of vLLM (``vllm.general_plugins``), loaded by the
engine's own process.
"""

import json
import os
from pathlib import Path

import torch

REPORT = "COMET_SERVING_WEIGHTS"  # file that says what was drawn
WEIGHT, ZERO_POINT, NORM = "qweight", "qzeros", "norm.weight"
EIGHTS = -0x77777778  # eight zero points of 8
NORMS = 0.5, 1.5  # about those of trained models


def draw_weights(model: torch.nn.Module) -> dict[str, int]:
    """Draw packed weights and norms, uniformly; zero points become 8.

    Args:
        model: with vLLM's dummy weights, before they are laid out for a kernel.

    Returns:
        ``norms``, ``packed`` tensors and ``packed_bytes`` that were drawn, and ``zero_bytes`` among
        the last beforehand.
    """
    found = {"norms": 0, "packed": 0, "packed_bytes": 0, "zero_bytes": 0}
    for seed, (name, parameter) in enumerate(model.named_parameters()):
        kind, floating = name.rsplit(".", 1)[-1], parameter.is_floating_point()
        if floating and name.endswith(NORM):
            found["norms"] += 1
            parameter.data.uniform_(*NORMS, generator=_generator(parameter, seed))
        elif kind == WEIGHT and not floating:
            data = parameter.data.view(torch.uint8)
            found["packed"] += 1
            found["packed_bytes"] += data.numel()
            found["zero_bytes"] += int((data == 0).sum())
            data.random_(0, 256, generator=_generator(parameter, seed))
        elif kind == ZERO_POINT and parameter.dtype == torch.int32:
            parameter.data.fill_(EIGHTS)
    return found


def _generator(parameter: torch.Tensor, seed: int) -> torch.Generator:
    return torch.Generator(parameter.device).manual_seed(seed)


def register() -> None:
    """Put a loader that draws these too in the place of vLLM's for dummy weights."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    class RandomWeights(DummyModelLoader):
        def load_weights(self, model: torch.nn.Module, model_config) -> None:
            super().load_weights(model, model_config)
            found = draw_weights(model)
            if REPORT in os.environ:
                Path(os.environ[REPORT]).write_text(json.dumps(found), encoding="utf-8")

    register_model_loader("dummy")(RandomWeights)
