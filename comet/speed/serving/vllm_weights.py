# SPDX-License-Identifier: Apache-2.0
"""Random integers for packed weights: ``load_format="dummy"`` leaves them as they were allocated.

vLLM draws weights in floating point only. Packed 4-bit ones stay what fresh memory holds, mostly
zeros, and a GPU that multiplies zeros draws less power and keeps a higher clock: a 4-bit engine
would be timed faster than it is. This is a plugin of vLLM (``vllm.general_plugins``), loaded by the
engine's own process.
"""

import json
import os
from pathlib import Path

import torch

REPORT = "COMET_SERVING_WEIGHTS"  # file that says what was filled
WEIGHT, ZERO_POINT = "qweight", "qzeros"
EIGHTS = -0x77777778  # eight zero points of 8


def fill_integers(model: torch.nn.Module) -> dict[str, int]:
    """Draw the packed integers of a model: weights uniform, zero points 8.

    Args:
        model: before its weights are laid out for a kernel.

    Returns:
        ``tensors`` and ``bytes`` that were drawn, and ``zero_bytes`` among them beforehand.
    """
    found = {"tensors": 0, "bytes": 0, "zero_bytes": 0}
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind == ZERO_POINT and parameter.dtype == torch.int32:
            parameter.data.fill_(EIGHTS)
        elif kind == WEIGHT and not parameter.is_floating_point():
            data = parameter.data.view(torch.uint8)
            generator = torch.Generator(data.device).manual_seed(found["tensors"])
            found["tensors"] += 1
            found["bytes"] += data.numel()
            found["zero_bytes"] += int((data == 0).sum())
            data.random_(0, 256, generator=generator)
    return found


def register() -> None:
    """Put a loader that also fills integers in the place of vLLM's for dummy weights."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    class RandomWeights(DummyModelLoader):
        def load_weights(self, model: torch.nn.Module, model_config) -> None:
            super().load_weights(model, model_config)
            found = fill_integers(model)
            if REPORT in os.environ:
                Path(os.environ[REPORT]).write_text(json.dumps(found), encoding="utf-8")

    register_model_loader("dummy")(RandomWeights)
