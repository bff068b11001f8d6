# SPDX-License-Identifier: Apache-2.0
"""Attention with quantized K and V inside a Hugging Face model, as a registered function."""

from collections.abc import Collection, Mapping
from functools import cache

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from comet.accuracy.kv_quantization import KVQuantization
from comet.errors import UserError
from comet.kernels.kv4_reference import paged_attention
from comet.methods.linear import Rotate
from comet.methods.rotation import hadamard_factors, whole_rotation

NAME = "comet_kv4"
EXACT = KVQuantization(key_bits=16, value_bits=16)


def use_kv4(
    model: torch.nn.Module,
    options: KVQuantization | None = None,
    layers: Collection[int] | None = None,
    key_smoothing: Mapping[int, torch.Tensor] | None = None,
) -> None:
    """Make a loaded causal language model keep K and V in few bits.

    Args:
        model: causal language model of one of comet's families; changed in place.
        options: how; the default is the KV4 format of the kernels.
        layers: numbers of the decoder layers that are quantized; None for all of them.
        key_smoothing: layer number -> fp32 [kv_heads, D]: K is divided by it before it is
            quantized and Q multiplied by it, after RoPE (SmoothAttention).

    Raises:
        UserError: the model has no rotary embedding, but K shall be stored before it; no Hadamard
            matrix of the size of a head.
    """
    options = options or KVQuantization()
    for module in _attention_modules(model):
        index = module.layer_idx
        if options.hadamard:
            hadamard_factors(module.head_dim)
        chosen = layers is None or index in layers
        module.kv_quantization = options if chosen else EXACT
        smoothing = (key_smoothing or {}).get(index)
        module.kv_smoothing = smoothing if chosen else None
        if options.before_rope and not hasattr(module, "kv_rotation"):
            module.register_forward_pre_hook(_remember_rotation, with_kwargs=True)
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def _attention_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "head_dim")]


def _remember_rotation(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
    """Keep cos and sin of the call; the attention function is not given them."""
    rotation = kwargs.get("position_embeddings")
    if rotation is None:
        raise UserError("K before RoPE was asked for, but this model has no rotary embedding")
    module.kv_rotation = rotation


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
    """The signature that transformers calls; sequences are whole, so the mask is causal.

    Args:
        query: [batch, heads, T, D].
        key, value: [batch, kv_heads, T, D].
    """
    if query.shape[2] != key.shape[2]:
        raise ValueError("KV4 evaluation runs whole windows without a cache (use_cache=False)")
    options = module.kv_quantization
    if module.kv_smoothing is not None:
        factor = module.kv_smoothing.to(key)[:, None]
        key = key / factor
        query = query * factor.repeat_interleave(query.shape[1] // key.shape[1], dim=0)
    if options.hadamard:
        rotation = _head_rotation(query.shape[-1], query.device)
        query, key = rotation.activations(query), rotation.activations(key)
    if options.before_rope:
        cos, sin = (part[:, None].float() for part in module.kv_rotation)
        # RoPE is a rotation: its inverse has the opposite angle.
        plain = _rope(key.float(), cos, -sin)
        stored = _rope(options.restore_keys(plain), cos, sin)
    else:
        stored = options.restore_keys(key)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    values = options.restore_values(value)
    out = paged_attention(query, key, stored, values, scale, options.key_page, sliding_window)
    return out.transpose(1, 2).contiguous(), None


@cache
def _head_rotation(size: int, device: torch.device) -> Rotate:
    """Kept, so that a GPU does not wait for a copy of it in every layer."""
    return whole_rotation(size, device)


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
