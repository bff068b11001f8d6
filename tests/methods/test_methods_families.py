# SPDX-License-Identifier: Apache-2.0
"""Every family: with 8 bits the methods of 4 bits give nearly the 16-bit model back."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.fmpq.pipeline import Calibration
from comet.methods.pipeline import apply_method, load_method_model
from comet.methods.registry import METHODS
from comet.models.folder import ModelFolder

EIGHT_BITS = {
    "smoothquant-w8a8": {},
    "gptq-w4a16": {"bits": 8},
    "awq-w4a16": {"bits": 8},
    "omniquant-w4a4": {"bits": 8, "activation_bits": 8, "epochs": 1, "clip_rate": 0.0},
}


@pytest.fixture(scope="module", params=["opt", "qwen2", "qwen3"])
def model(request, tmp_path_factory) -> tuple[ModelFolder, Calibration, torch.Tensor]:
    base = tmp_path_factory.mktemp(request.param)
    write_model(base / "model", tiny_config(request.param, num_hidden_layers=2))
    write_tokenizer(base / "model")
    folder = ModelFolder(base / "model")
    calibration = Calibration(write_text(base / "text.jsonl"), "words", windows=4, context=32)
    with torch.no_grad():
        logits = folder.load(torch.float32, "cpu")(torch.arange(3, 35)[None]).logits
    return folder, calibration, logits


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_eight_bits_are_nearly_sixteen(name, model, tmp_path):
    folder, calibration, exact = model
    method = replace(METHODS[name], **EIGHT_BITS[name])
    apply_method(name, method, folder, calibration, tmp_path / "q")
    with torch.no_grad():
        loaded = load_method_model(tmp_path / "q", folder, torch.float32, "cpu")
        logits = loaded(torch.arange(3, 35)[None]).logits
    assert 0 < (logits - exact).norm() < 0.05 * exact.norm()
