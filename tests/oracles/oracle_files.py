# SPDX-License-Identifier: Apache-2.0
"""What the scripts that make the fixtures share: arguments, versions, files."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import torch
from problems import MODEL_CONTEXT, MODEL_LAYER, MODEL_WINDOWS, Problem, digest, of_model, synthetic
from safetensors.torch import save_file

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    """Where the default model and its calibration text are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default="resources/models/smollm2-135m")
    parser.add_argument(
        "--calibration", type=Path, default="resources/texts/boolq-passages/calibration.jsonl"
    )
    return parser.parse_args()


def both_problems(options: argparse.Namespace) -> tuple[dict[str, Problem], dict[str, Problem]]:
    """The drawn problems, and those of one layer of the default model."""
    return synthetic(), of_model(options.model, options.calibration)


def write_fixture(
    name: str,
    packages: tuple[str, ...],
    problems: dict[str, Problem],
    restored: dict[str, torch.Tensor],
    errors: dict[str, float],
    model_errors: dict[str, float],
    note: str,
) -> None:
    """Write ``<name>.json`` and, with the restored weights, ``<name>.safetensors``.

    Args:
        name: of the method.
        packages: distributions that did the work, beside torch.
        problems: the drawn problems.
        restored: the library's restored weights of the drawn problems, by configuration and linear.
        errors, model_errors: output error of each linear, of the drawn problems and of the model.
        note: what the library was asked to do.
    """
    save_file(restored, HERE / f"{name}.safetensors")
    facts = {
        "note": note,
        "versions": {package: version(package) for package in (*packages, "torch", "numpy")},
        "problems_sha256": digest(problems),
        "errors": errors,
        "model": {
            "what": "SmolLM2-135M-Instruct, the default model",
            "layer": MODEL_LAYER,
            "windows": MODEL_WINDOWS,
            "context": MODEL_CONTEXT,
            "errors": model_errors,
        },
    }
    text = json.dumps(facts, indent=1) + "\n"
    (HERE / f"{name}.json").write_text(text, encoding="utf-8")
