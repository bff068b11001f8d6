# SPDX-License-Identifier: Apache-2.0
"""Declared models and texts: whether each can be made as its entry says."""

import json
from pathlib import Path

from comet.config.names import check_known
from comet.config.shapes import shape_layers
from comet.errors import UserError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt")
RANDOM_FAMILIES = ("llama", "mistral", "qwen2")


def check_models(config: dict) -> None:
    """Check the entries of ``models``.

    Raises:
        UserError: the first thing that is wrong, in one line.
    """
    models = config["models"]
    for name, entry in models.items():
        source, where = entry["source"], f"models.{name}"
        if source["kind"].endswith("-wheel") and not entry["sha256"]:
            raise UserError(f"{where} lacks sha256; give the hash of the wheel")
        if source["kind"] == "folder":
            _check_folder(Path(source["path"]), entry["family"], f"{where}.source.path")
        if source["kind"] == "recast":
            check_known([source["model"]], models, f"{where}.source.model", "model")
            base = models[source["model"]]["source"]["kind"]
            if base in ("recast", "random"):
                raise UserError(
                    f"{where}.source.model is {source['model']}, itself {base}; name the "
                    "model that has the weights"
                )
        if source["kind"] == "random":
            _check_random(entry, where)


def _check_random(entry: dict, where: str) -> None:
    shapes, source = shape_layers(), entry["source"]
    check_known([source["shape"]], shapes, f"{where}.source.shape", "model shape")
    family = source["shape"].split("-")[0].lower()
    if family not in RANDOM_FAMILIES:
        raise UserError(
            f"{where}.source.shape is {source['shape']}; random weights are made for "
            f"{', '.join(RANDOM_FAMILIES)} only"
        )
    if entry["family"] != family:
        raise UserError(f"{where}.family is {entry['family']}, but {source['shape']} is {family}")
    if source.get("layers", 1) > shapes[source["shape"]]:
        raise UserError(
            f"{where}.source.layers is {source['layers']}; {source['shape']} has "
            f"{shapes[source['shape']]} layers"
        )
    if "random weights" not in entry["label"]:
        raise UserError(f"{where}.label is {entry['label']!r}; let it say random weights")


def _check_folder(path: Path, family: str, where: str) -> None:
    description = path / "config.json"
    if not description.is_file():
        raise UserError(
            f"{where} is {path}, where there is no config.json; give a Hugging Face model folder"
        )
    try:
        found = json.loads(description.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        raise UserError(f"{description} is not a JSON object; fetch the model again") from None
    if found not in FAMILIES:
        raise UserError(
            f"{description} has model_type {found!r}, an unsupported family; "
            f"comet knows {', '.join(FAMILIES)}"
        )
    if found != family:
        raise UserError(f"{description} has model_type {found}, but the config says {family}")


def check_texts(config: dict) -> None:
    """Check the entries of ``texts``.

    Raises:
        UserError: the first thing that is wrong, in one line.
    """
    for name, entry in config["texts"].items():
        source, where = entry["source"], f"texts.{name}"
        if source["kind"].endswith("-wheel") and not entry["sha256"]:
            raise UserError(f"{where} lacks sha256; give the hash of the wheel")
        if source["kind"] == "file" and not Path(source["path"]).is_file():
            raise UserError(f"{where}.source.path is {source['path']}, which does not exist")
