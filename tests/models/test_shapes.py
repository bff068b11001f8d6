# SPDX-License-Identifier: Apache-2.0
"""Layer shapes: the table of the paper's models and those computed from a configuration."""

import pytest
import torch
from tiny_models import tiny_config
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig

from comet.errors import UserError
from comet.models.families import FAMILIES
from comet.models.shapes import LINEARS, shape_table, shapes_from_config, shapes_of


def test_grouped_query_attention_and_fused_gate_up():
    shapes = shapes_of("LLaMA-3-8B")
    assert shapes.linears == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    }
    assert shapes.printed["qkv"] == (12288, 4096)
    assert (shapes.layers, shapes.kv_heads, shapes.head_dim) == (32, 8, 128)
    assert shapes.linear_weights == 32 * (6144 + 4096 + 28672 + 14336) * 4096


def test_table_agrees_with_configurations():
    for name, shapes in shape_table().items():
        common = {
            "vocab_size": shapes.vocab,
            "hidden_size": shapes.hidden,
            "num_hidden_layers": shapes.layers,
            "num_attention_heads": shapes.heads,
        }
        if name.startswith("OPT"):
            config = OPTConfig(ffn_dim=shapes.intermediate, **common)
        else:
            config = LlamaConfig(
                intermediate_size=shapes.intermediate,
                num_key_value_heads=shapes.kv_heads,
                head_dim=shapes.head_dim,
                **common,
            )
        computed = shapes_from_config(config, name)
        assert computed.linears == shapes.linears, name
        assert tuple(shapes.printed) == LINEARS


@pytest.mark.parametrize("family", list(FAMILIES))
def test_computed_shapes_are_those_of_the_modules(family):
    config = tiny_config(family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layer = FAMILIES[family].layers_of(model)[0]
    shapes = shapes_from_config(config, family)
    for name, group in zip(LINEARS, FAMILIES[family].inputs, strict=True):
        weights = [layer.get_submodule(linear).weight for linear in group.linears]
        n, k = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        assert shapes.linears[name] == (n, k)


def test_unknown_models():
    with pytest.raises(UserError, match="no shapes of a model 'GPT-2'; known are LLaMA-1-30B"):
        shapes_of("GPT-2")
    config = LlamaConfig()
    config.model_type = "gpt2"
    with pytest.raises(UserError, match="GPT-2: unsupported model family"):
        shapes_from_config(config, "GPT-2")
