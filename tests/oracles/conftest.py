# SPDX-License-Identifier: Apache-2.0
"""The problems that the fixtures were made on; those of the default model need its wheel."""

import json
from dataclasses import dataclass

import pytest
import torch
from oracle_files import HERE
from problems import Problem, digest, of_model, synthetic
from safetensors.torch import load_file

from comet.data.entries import TextEntry
from comet.data.prepare import prepare_text
from comet.models.entries import ModelEntry
from comet.models.prepare import prepare_model

MODEL, TEXT = "smollm2-135m", "boolq-passages"


@dataclass
class Oracle:
    """What a library said: restored weights, and output errors of the drawn problems and model."""

    weights: dict[str, torch.Tensor]
    errors: dict[str, float]
    model_errors: dict[str, float]


@pytest.fixture(scope="session")
def drawn() -> dict[str, Problem]:
    return synthetic()


@pytest.fixture(scope="session")
def of_the_model(tmp_path_factory, default_config, real_downloads) -> dict[str, Problem]:
    base = tmp_path_factory.mktemp("oracle")
    entry = ModelEntry.from_config(MODEL, default_config["models"][MODEL])
    prepare_model(entry, {MODEL: entry}, base / "model", real_downloads)
    text = TextEntry.from_config(TEXT, default_config["texts"][TEXT])
    prepare_text(text, base / "text", real_downloads)
    return of_model(base / "model", base / "text" / "calibration.jsonl")


@pytest.fixture(scope="session")
def oracle(drawn):
    """A method's fixture, which was made on the problems that are drawn here."""

    def read(name: str) -> Oracle:
        facts = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
        assert facts["problems_sha256"] == digest(drawn)
        weights = load_file(HERE / f"{name}.safetensors")
        return Oracle(weights, facts["errors"], facts["model"]["errors"])

    return read
