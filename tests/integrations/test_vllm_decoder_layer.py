# SPDX-License-Identifier: Apache-2.0
"""vLLM's own decoder layer with fused quantization, on a CPU; runs where vLLM 0.24 is installed."""

import types

import pytest
import torch
from torch import nn

from comet.fmpq.options import FMPQOptions
from comet.formats.blocks import BlockLayout

pytestmark = pytest.mark.vllm
HIDDEN, INNER, TOKENS = 256, 384, 5
PATHS = {
    **{f"self_attn.{name}_proj": HIDDEN for name in "qkvo"},
    "mlp.gate_proj": HIDDEN,
    "mlp.up_proj": HIDDEN,
    "mlp.down_proj": INNER,
}


@pytest.fixture
def config(tmp_path):
    """vLLM's configuration, current, with one rank."""
    pytest.importorskip("vllm", reason="vLLM is not installed here")
    from vllm.config import DeviceConfig, LoadConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    made = VllmConfig(device_config=DeviceConfig(device="cpu"))
    made.load_config = LoadConfig(load_format="dummy")
    with set_current_vllm_config(made):
        init_distributed_environment(1, 0, f"file://{tmp_path}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield made
        destroy_model_parallel()
        destroy_distributed_environment()


def decoder_layer(config, monkeypatch) -> nn.Module:
    """A LLaMA layer that vLLM's loader has prepared; attention hands the queries on."""
    from transformers import LlamaConfig
    from vllm.model_executor.model_loader import base_loader
    from vllm.model_executor.models import llama

    from comet.integrations.vllm.quantization import FmpqConfig

    class Attention(nn.Module):
        def __init__(self, *_, **__):
            super().__init__()

        def forward(self, query, _key, _value):
            return query

    monkeypatch.setattr(llama, "Attention", Attention)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    shape = LlamaConfig(**sizes, **heads, vocab_size=64, max_position_embeddings=128)
    facts = {}
    for path, channels in PATHS.items():
        blocks = {"int8_blocks": 1, "int4_blocks": BlockLayout.of(channels, 1).blocks - 1}
        fixed = {"channels": channels, "scale_kind": "group_int", "hadamard": False}
        facts[f"model.layers.0.{path}"] = fixed | blocks
    quantization = FmpqConfig(1, FMPQOptions().as_dict(), facts)
    quantization.packed_modules_mapping = llama.LlamaForCausalLM.packed_modules_mapping
    model = types.SimpleNamespace(hf_config=shape, dtype=torch.bfloat16, quantization=None)
    given = types.SimpleNamespace(
        model_config=model,
        cache_config=None,
        quant_config=quantization,
        parallel_config=config.parallel_config,
        compilation_config=config.compilation_config,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = llama.LlamaDecoderLayer(given, prefix="model.layers.0", config=shape)
    finally:
        torch.set_default_dtype(torch.float32)
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.data = torch.randn(HIDDEN).bfloat16()
    base_loader.process_weights_after_loading(nn.Sequential(layer), model, torch.device("cpu"))
    return layer.eval()


def inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16() for _ in range(2))
    return torch.arange(TOKENS), x, residual


def normed(norm: nn.Module, total: torch.Tensor) -> torch.Tensor:
    mean = total.float().pow(2).mean(1, keepdim=True)
    return (total.float() * torch.rsqrt(mean + norm.epsilon)).bfloat16() * norm.weight


def separately(layer: nn.Module, positions, x, residual) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer with an operator for each step; linear layers quantize their own inputs."""
    total = x if residual is None else x + residual
    hidden = layer.self_attn(positions, normed(layer.input_layernorm, total))
    total = total + hidden
    gate, up = layer.mlp.gate_up_proj(normed(layer.post_attention_layernorm, total))[0].chunk(2, 1)
    return layer.mlp.down_proj(nn.functional.silu(gate) * up)[0], total


def test_a_real_layer_is_fused_and_gives_the_same_bits(config, monkeypatch):
    layer = decoder_layer(config, monkeypatch)
    names = [type(module).__name__ for module in layer.modules()]
    assert names.count("QuantizingNorm") == 2 and names.count("QuantizingSilu") == 1
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    positions, x, residual = inputs()
    with torch.inference_mode():
        for earlier in (None, residual):
            expected = separately(layer, positions, x, earlier)
            assert all(map(torch.equal, layer(positions, x, earlier), expected))
        assert all(map(torch.equal, compiled(positions, x, residual), expected))
