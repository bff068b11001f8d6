# SPDX-License-Identifier: Apache-2.0
"""Rotated weights of a small LLaMA by llm-compressor's SpinQuantModifier; see README.md."""

import hashlib
import json
from importlib.metadata import version

import torch
from llmcompressor.core import Event, EventType, State
from llmcompressor.modifiers.transform import SpinQuantModifier
from oracle_files import HERE
from safetensors.torch import save_file
from small_llama import small_llama

# R1 turns the residual stream, R2 the values head by head, R4 the input of the last linear.
ROTATIONS = ["R1", "R2", "R4"]


def main() -> None:
    model = small_llama()
    modifier, state = SpinQuantModifier(rotations=ROTATIONS), State(model=model)
    modifier.on_initialize(state)
    modifier.on_calibration_start(state, Event(type_=EventType.CALIBRATION_START))
    rotated = {
        name: module.weight.detach().float().contiguous()
        for name, module in model.model.layers[0].named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    file = HERE / "quarot.safetensors"
    save_file(rotated, file)
    facts = {
        "note": f"SpinQuantModifier, Hadamard rotations {', '.join(ROTATIONS)}, norms fused",
        "versions": {
            name: version(name)
            for name in ("llmcompressor", "compressed-tensors", "transformers", "torch", "numpy")
        },
        "weights_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    (HERE / "quarot.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
