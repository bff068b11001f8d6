# SPDX-License-Identifier: Apache-2.0
"""QuaRot's rotated weights against those of llm-compressor, before anything is rounded."""

import hashlib
import json
from dataclasses import dataclass, field

import pytest
import torch
from oracle_files import HERE
from safetensors.torch import load_file
from small_llama import SIZES, small_llama

from comet.methods import quarot
from comet.methods.linear import ActivationGrid
from comet.methods.method import Block, watch_inputs
from comet.methods.rotation import whole_rotation
from comet.models.families import family_named


@dataclass(frozen=True)
class Recorder:
    """Stands for the rounding of weights and keeps what it is given."""

    seen: list = field(default_factory=list)

    def restore(self, weight, moment):
        self.seen.append(weight)
        return weight


@pytest.fixture
def rotated(monkeypatch):
    """What QuaRot rounds, by linear; the library draws no random signs, so none are drawn here."""
    monkeypatch.setattr(
        quarot, "_stream_rotation", lambda size, device: (whole_rotation(size, device),)
    )
    model, family = small_llama(), family_named("llama", "test")
    layer = model.model.layers[0]
    tokens = torch.arange(20)[None]
    inputs = watch_inputs(layer, family, lambda: model(tokens), tokens.numel())
    heads, kv_heads = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    block = Block(0, None, None, lambda layer, hidden: hidden, heads, kv_heads, 64 // heads)
    recorder = Recorder()
    method = quarot.QuaRot("QuaRot", weights=recorder, activations=ActivationGrid())
    method.quantize_layer(layer, family, inputs, block)
    return dict(zip(family.linears, recorder.seen, strict=True))


def test_rotated_weights_are_the_librarys(rotated):
    file = HERE / "quarot.safetensors"
    facts = json.loads((HERE / "quarot.json").read_text(encoding="utf-8"))
    assert facts["weights_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    expected = load_file(file)
    assert set(expected) == set(rotated)
    # QuaRot turns the attention's output whole, the library head by head.
    for name in set(expected) - {"self_attn.o_proj"}:
        torch.testing.assert_close(rotated[name], expected[name], rtol=1e-4, atol=1e-5)
