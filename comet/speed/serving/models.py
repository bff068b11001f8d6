# SPDX-License-Identifier: Apache-2.0
"""Folders with a model's configuration and no weights: engines make random ones of its shape.

What the kernels of a dense decoder do does not depend on the values of its weights. The power of a
GPU does, and at its limit the clock: none of them are zeros (``vllm_weights``).
"""

from pathlib import Path

import torch

from comet.files import write_json
from comet.fmpq.options import FMPQOptions
from comet.fmpq.outliers import choose_layout
from comet.formats.checkpoint import FORMAT_VERSION
from comet.models.families import family_named
from comet.models.random_weights import model_config, shape_family
from comet.models.shapes import ModelShapes, shapes_of

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
# The 4-bit format that serving engines run fastest on 16-bit activations.
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def write_model_folder(folder: Path, model: str, quantization: str | None, context: int) -> None:
    """Write ``config.json`` of a model.

    Args:
        folder: existing folder.
        model: of ``resources/paper/model_shapes.csv``.
        quantization: ``awq``, ``fmpq`` or None for 16 bit.
        context: tokens that a sequence may have.

    Raises:
        UserError: no such model.
    """
    shapes = shapes_of(model)
    family = shape_family(model)
    config = model_config(shapes, family).to_dict()
    config["architectures"] = [ARCHITECTURES[family]]
    config["dtype"] = "float16" if quantization == "awq" else "bfloat16"
    config["max_position_embeddings"] = max(context, config["max_position_embeddings"])
    if quantization:
        facts = {"awq": AWQ, "fmpq": fmpq_facts(shapes, family, FMPQOptions())}
        config["quantization_config"] = facts[quantization]
    write_json(folder / "config.json", config)


def fmpq_facts(shapes: ModelShapes, family: str, options: FMPQOptions) -> dict:
    """The ``quantization_config`` that quantizing the model would write, without calibration."""
    structure = family_named(family, shapes.model)
    layers = {}
    for index in range(shapes.layers):
        for group in structure.inputs:
            channels = shapes.linears[_READ_BY[group.name]][1]
            layout = choose_layout(torch.zeros(channels), options)
            for linear in group.linears:
                layers[f"{structure.layers}.{index}.{linear}"] = {
                    "channels": channels,
                    "int4_blocks": layout.int4_blocks,
                    "int8_blocks": layout.int8_blocks,
                    "scale_kind": options.weight_scale,
                    "hadamard": options.act_hadamard,
                }
    return {
        "quant_method": "fmpq",
        "version": FORMAT_VERSION,
        "options": options.as_dict(),
        "layers": layers,
        "checkpoint": "none: random weights",
    }


_READ_BY = {"attn_in": "qkv", "attn_out": "o", "mlp_in": "gate_up", "mlp_out": "down"}
