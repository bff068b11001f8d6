# SPDX-License-Identifier: Apache-2.0
"""Whether the 16-bit weights of the models that accuracy loads as a whole fit the device."""

import csv
from functools import cache

from comet import hints
from comet.config.shapes import SHAPES
from comet.doctor.problems import Problem, uses_gpu

BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}
GB_OF_GIB = 2**30 / 1e9


def model_memory(config: dict, facts: dict) -> dict[str, Problem]:
    """The problem of models that are too large, under the identifier ``model-memory``.

    Only models whose label is one of the table of shapes are known.
    """
    on_gpu = uses_gpu(config, facts)
    if on_gpu and not facts["gpus"]:
        return {}
    there = facts["gpus"][0]["memory_gib"] if on_gpu else facts["memory_gib"]
    there *= GB_OF_GIB
    size = BYTES[config["accuracy"]["dtype"]]
    weights = {
        name: parameters()[config["models"][name]["label"]] * size / 1e9
        for name in config["accuracy"]["models"]
        if config["models"][name]["label"] in parameters()
    }
    large = [f"{name} ({need:.0f} GB)" for name, need in weights.items() if need > there]
    if not large:
        return {}
    place = "the GPU" if on_gpu else "this machine"
    what = f"accuracy loads whole models, and {place} has {there:.0f} GB for {', '.join(large)}"
    return {"model-memory": Problem(what, hints.MODEL_MEMORY)}


@cache
def parameters() -> dict[str, int]:
    """Weights of the linears, the embedding and the head of each model of the table."""
    linears = ("derived_qkv", "derived_o", "derived_gate_up_fused", "derived_down")
    found = {}
    with open(SHAPES, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            layer = sum(int(row[f"{name}_n"]) * int(row[f"{name}_k"]) for name in linears)
            embedding = int(row["cfg_vocab"]) * int(row["cfg_hidden"])
            found[row["model"]] = int(row["cfg_layers"]) * layer + 2 * embedding
    return found
