# SPDX-License-Identifier: Apache-2.0
"""A tiny model with all FMPQ checkpoints and a text."""

import pytest
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.fmpq.options import PLUS, FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.fmpq.plan import CHECKPOINTS
from comet.models.folder import ModelFolder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    base = tmp_path_factory.mktemp("tiny")
    write_model(base / "model", tiny_config("llama", hidden_size=160, intermediate_size=384))
    write_tokenizer(base / "model")
    text = write_text(base / "text.jsonl")
    folder = ModelFolder(base / "model")
    for checkpoint in CHECKPOINTS:
        calibration = Calibration(text, "words", windows=2, context=64)
        options = FMPQOptions(**(PLUS if checkpoint == "fmpq-plus" else {}))
        quantize_model(
            folder, calibration, base / checkpoint, options, checkpoint, "tiny", {}, seed=0
        )
    return base
