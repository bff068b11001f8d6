# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of every family."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from comet.files import write_json_lines

VOCAB = 96
GROUPED = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def tiny_config(family: str, **changes) -> PreTrainedConfig:
    """A configuration of three layers; its linears have biases where the family has them."""
    if family == "opt":
        sizes = {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        }
        return OPTConfig(**(sizes | changes))
    classes = {
        "llama": LlamaConfig,
        "mistral": MistralConfig,
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
    }
    if family in ("mistral", "qwen3"):
        changes = {"head_dim": 16} | changes
    if family == "mistral":
        changes = {"sliding_window": None} | changes
    return classes[family](**(GROUPED | changes))


def write_model(folder: Path, config: PreTrainedConfig, seed: int = 0, **save_options) -> Path:
    """Save a model with random weights, large enough that no layer is close to the identity."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, **save_options)
    return folder


def write_calm_model(folder: Path, config: PreTrainedConfig) -> Path:
    """Save a model whose layers add little to the residual stream, as trained ones do: with the
    large weights of ``write_model`` one changed bit moves the logits by a third."""
    model = AutoModelForCausalLM.from_pretrained(write_model(folder, config))
    with torch.no_grad():
        for name, parameter in model.model.layers.named_parameters():
            parameter.fill_(1) if "norm" in name else parameter.mul_(0.1)
    model.save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: one id for each printable ASCII character."""
    pieces = ["<unk>", "\u0120", *map(chr, range(33, 127))]
    model = BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)


def write_text(path: Path, passages: int = 40, seed: int = 0) -> Path:
    """Passages of random characters, as a prepared text."""
    draw = random.Random(seed)
    rows = [
        {"title": str(i), "text": "".join(chr(draw.randrange(33, 127)) for _ in range(50))}
        for i in range(passages)
    ]
    write_json_lines(path, rows)
    return path
