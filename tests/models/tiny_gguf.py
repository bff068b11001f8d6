# SPDX-License-Identifier: Apache-2.0
"""A tiny LLaMA model inside a wheel, as a GGUF file; no network needed."""

import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF stores the two halves of each rotary head row by row in turn."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: PreTrainedModel) -> None:
    """Write a LLaMA model with a tied head and a byte-level tokenizer as float32 GGUF."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    tokens = ["<unk>", "<s>", "</s>"] + [chr(33 + i) for i in range(config.vocab_size - 4)]
    tokens.append("ab")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (config.vocab_size - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in _gguf_tensors(model):
        writer.add_tensor(name, np.ascontiguousarray(value.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_tensors(model: PreTrainedModel):
    state = {name: value.detach() for name, value in model.state_dict().items()}
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    heads = {
        "attn_q": model.config.num_attention_heads,
        "attn_k": model.config.num_key_value_heads,
    }
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            value = state[f"model.layers.{layer}.{ours}.weight"]
            value = _interleaved(value, heads[theirs]) if theirs in heads else value
            yield f"blk.{layer}.{theirs}.weight", value


def write_wheel(path: Path, members: dict[str, Path | bytes]) -> Path:
    """A zip archive with these members, named as a wheel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            archive.writestr(name, data)
    return path
