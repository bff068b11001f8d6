# SPDX-License-Identifier: Apache-2.0
"""KV4 attention inside a Hugging Face model, as a registered attention function."""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from comet.kernels.kv4_reference import kv4_attention

NAME = "comet_kv4"


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The signature that transformers calls; windows are whole and unpadded, so the mask is causal.

    Args:
        query: [batch, heads, T, D].
        key, value: [batch, kv_heads, T, D].
    """
    if query.shape[2] != key.shape[2]:
        raise ValueError("KV4 evaluation runs whole windows without a cache (use_cache=False)")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = kv4_attention(query, key, value, scale, sliding_window)
    return out.transpose(1, 2).contiguous(), None


def use_kv4(model: torch.nn.Module) -> None:
    """Make a loaded causal language model keep K and V of every layer in 4 bit."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
