# SPDX-License-Identifier: Apache-2.0
"""The weights of a LLaMA model, written as a model of another family that computes the same."""

import torch
from transformers import MistralConfig, PreTrainedConfig, Qwen2Config

from comet.errors import UserError
from comet.models.folder import ModelFolder

SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
TARGETS = ("mistral", "qwen2")


def recast(folder: ModelFolder, family: str) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
    """Configuration and weights of ``folder`` as a model of ``family``.

    Sliding windows stay off, so that attention is the same. Qwen2's biases of q, k and v, which
    LLaMA does not have, are zeros.

    Args:
        folder: a model of family ``llama`` without biases.
        family: ``mistral`` or ``qwen2``.

    Returns:
        The configuration, and tensor name -> tensor in the stored dtype.

    Raises:
        UserError: this pair of families, or a bias or head size, has no exact counterpart.
    """
    base = folder.config
    if folder.family.name != "llama" or family not in TARGETS:
        raise UserError(
            f"{folder.path}: {folder.family.name} cannot be recast as {family}; only llama as "
            f"{' or '.join(TARGETS)}"
        )
    if base.attention_bias or base.mlp_bias:
        raise UserError(f"{folder.path} has biases, which {family} does not have in these places")
    values = {name: getattr(base, name) for name in SHARED}
    weights = folder.tensors(folder.tensor_names())
    if family == "mistral":
        return MistralConfig(sliding_window=None, head_dim=base.head_dim, **values), weights
    if base.head_dim * base.num_attention_heads != base.hidden_size:
        raise UserError(f"{folder.path} has heads of {base.head_dim}, which qwen2 cannot express")
    for name in folder.tensor_names():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            bias = torch.zeros(weights[name].shape[0], dtype=weights[name].dtype)
            weights[name.removesuffix("weight") + "bias"] = bias
    return Qwen2Config(use_sliding_window=False, **values), weights
