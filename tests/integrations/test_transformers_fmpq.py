# SPDX-License-Identifier: Apache-2.0
"""FMPQ checkpoints through Hugging Face's own loading, generation and saving."""

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from comet.errors import UserError
from comet.files import read_json_lines
from comet.fmpq.model import load_checkpoint_model
from comet.integrations.linear import FMPQLinear
from comet.integrations.transformers import FMPQConfig, quantize

FAMILIES = ("llama", "mistral", "qwen2", "opt")
SIZES = {"opt": {"hidden_size": 160, "ffn_dim": 384, "word_embed_proj_dim": 160}}


@pytest.fixture(scope="module", params=FAMILIES)
def made(request, tmp_path_factory):
    base = tmp_path_factory.mktemp(request.param)
    sizes = SIZES.get(request.param, {"hidden_size": 160, "intermediate_size": 384})
    write_model(base / "model", tiny_config(request.param, **sizes))
    write_tokenizer(base / "model")
    texts = [row["text"] for row in read_json_lines(write_text(base / "text.jsonl"))]
    model = AutoModelForCausalLM.from_pretrained(base / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    quantized = quantize(model, tokenizer, texts, base / "q", windows=2, context=64)
    return base, quantized


def logits(model) -> torch.Tensor:
    tokens = torch.arange(3, 43)[None]
    with torch.no_grad():
        return model(tokens).logits


def test_it_is_the_model_that_the_harness_evaluates(made):
    base, quantized = made
    own = load_checkpoint_model(base / "q", torch.float32)
    torch.testing.assert_close(logits(quantized), logits(own), rtol=1e-5, atol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(base / "model", dtype=torch.float32)
    assert (logits(quantized) - logits(plain)).abs().max() > 1e-2


def test_the_configuration_is_of_a_registered_method(made):
    base, quantized = made
    assert isinstance(quantized.config.quantization_config, FMPQConfig)
    config = AutoConfig.from_pretrained(base / "q")
    assert config.quantization_config["quant_method"] == "fmpq"
    linears = [m for m in quantized.modules() if isinstance(m, FMPQLinear)]
    assert len(linears) == len(quantized.config.quantization_config.layers)


def test_scales_keep_their_type_when_the_model_is_cast(made):
    base, quantized = made
    sixteen = AutoModelForCausalLM.from_pretrained(base / "q", dtype=torch.bfloat16)
    stored = {n: b for n, b in quantized.named_buffers() if n.endswith("channel_scale")}
    read = dict(sixteen.named_buffers())
    assert stored
    for name, scale in stored.items():
        assert read[name].dtype == torch.float32
        assert torch.equal(read[name], scale)
    cast = sixteen.to(torch.float16)
    for name, buffer in cast.named_buffers():
        if name.endswith("channel_scale"):
            assert torch.equal(buffer, stored[name])
    assert logits(cast).dtype == torch.float16


def test_it_generates_and_saves(made, tmp_path):
    base, quantized = made
    prompt = torch.arange(3, 13)[None]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    tokens = quantized.generate(prompt, **options)
    assert tokens.shape == (1, 18)
    quantized.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
    assert torch.equal(logits(again), logits(quantized))
    assert torch.equal(again.generate(prompt, **options), tokens)


def test_bad_input_is_one_line(made, tmp_path):
    base, quantized = made
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    with pytest.raises(UserError, match="exists; remove it"):
        quantize(base / "model", tokenizer, ["text"], base / "q")
    with pytest.raises(UserError, match="fmpq.bits is unknown"):
        quantize(base / "model", tokenizer, ["text"], tmp_path / "q", bits=4)
    with pytest.raises(UserError, match="too short|tokens"):
        quantize(base / "model", tokenizer, ["text"], tmp_path / "q")
    with pytest.raises(UserError, match="format version 99"):
        FMPQConfig(version=99, options={}, layers={})
    assert not (tmp_path / "q").exists()
