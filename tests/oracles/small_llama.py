# SPDX-License-Identifier: Apache-2.0
"""A LLaMA of one layer, drawn by numpy's RandomState, that rotations are compared on."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


def small_llama() -> LlamaForCausalLM:
    """The same weights wherever it is called; the scales of its norms are not one."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    draw = np.random.RandomState(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = draw.standard_normal(parameter.shape) * 0.1 + ("norm" in name)
            parameter.copy_(torch.from_numpy(values.astype(np.float16).astype(np.float32)))
    return model
