# SPDX-License-Identifier: Apache-2.0
"""Quantization fused with norms and activations inside vLLM: same numbers, fewer operators."""

import types

import pytest
import torch
import vllm_standins as vllm
from torch import nn

from comet.fmpq.options import FMPQOptions
from comet.formats.blocks import BlockLayout

HIDDEN, INNER, TOKENS = 256, 384, 5
FACTS = {"scale_kind": "group_int", "hadamard": False}
SHAPES = {
    "self_attn.qkv_proj": (["q_proj", "k_proj", "v_proj"], HIDDEN, [128, 64, 64]),
    "mlp.gate_up_proj": (["gate_proj", "up_proj"], HIDDEN, [INNER, INNER]),
    "mlp.down_proj": (["down_proj"], INNER, [HIDDEN]),
}


class RMSNorm(nn.Module):
    """As vLLM's, rounded as separate operators round."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels).bfloat16(), requires_grad=False)
        self.variance_epsilon, self.variance_size_override, self.has_weight = 1e-5, None, True

    def forward(self, x, residual=None):
        total = x if residual is None else x + residual
        mean = total.float().pow(2).mean(-1, keepdim=True)
        normed = (total.float() * torch.rsqrt(mean + 1e-5)).bfloat16() * self.weight
        return normed if residual is None else (normed, total)


class SiluAndMul(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


class LlamaDecoderLayer(nn.Module):
    """The order of vLLM's layer; attention hands the queries on."""

    def __init__(self, config):
        super().__init__()
        made = {}
        for name, (_, channels, sizes) in SHAPES.items():
            made[name] = vllm.LinearBase(channels, sizes, config, f"model.layers.0.{name}")
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        self.self_attn.qkv_proj = made["self_attn.qkv_proj"]
        self.mlp.gate_up_proj, self.mlp.down_proj = made["mlp.gate_up_proj"], made["mlp.down_proj"]
        self.mlp.act_fn = SiluAndMul()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(HIDDEN), RMSNorm(HIDDEN)

    def forward(self, hidden, residual):
        if residual is None:
            residual = hidden
            hidden = self.input_layernorm(hidden)
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.self_attn.qkv_proj(hidden)
        hidden, residual = self.post_attention_layernorm(hidden, residual)
        return self.mlp.down_proj(self.mlp.act_fn(self.mlp.gate_up_proj(hidden))), residual


@pytest.fixture
def plugin(monkeypatch):
    vllm.install(monkeypatch)
    monkeypatch.setattr(vllm.CONFIG.load_config, "load_format", "dummy")
    from comet.integrations.vllm import quantization

    return quantization


def loaded(plugin, kind=LlamaDecoderLayer):
    """A layer that vLLM's loader has prepared."""
    from vllm.model_executor.model_loader import base_loader

    layers = {}
    for name, (parts, channels, _) in SHAPES.items():
        layout = BlockLayout.of(channels, 1)
        facts = FACTS | {"channels": channels, "int8_blocks": 1, "int4_blocks": layout.blocks - 1}
        path = name.rpartition(".")[0]
        layers |= {f"model.layers.0.{path}.{part}": facts for part in parts}
    config = plugin.FmpqConfig(1, FMPQOptions().as_dict(), layers)
    config.packed_modules_mapping = {
        name.rpartition(".")[2]: parts for name, (parts, *_) in SHAPES.items()
    }
    torch.manual_seed(0)
    model = nn.Sequential(kind(config))
    base_loader.process_weights_after_loading(model, None, torch.device("cpu"))
    return model[0]


def outputs(layer, dtype=torch.bfloat16):
    torch.manual_seed(1)
    hidden, residual = (torch.randn(TOKENS, HIDDEN).to(dtype) for _ in range(2))
    return *layer(hidden, None), *layer(hidden, residual)


def test_a_fused_layer_gives_the_same_bits(plugin, monkeypatch):
    fused = loaded(plugin)
    assert type(fused.input_layernorm).__name__ == "QuantizingNorm"
    assert type(fused.post_attention_layernorm).__name__ == "QuantizingNorm"
    assert type(fused.mlp.act_fn).__name__ == "QuantizingSilu"
    assert {name for name, _ in fused.named_parameters()} >= {"input_layernorm.weight"}
    monkeypatch.setenv("COMET_VLLM_FUSION", "0")
    vllm.install(monkeypatch)
    from comet.integrations.vllm import quantization

    separate = loaded(quantization)
    assert isinstance(separate.input_layernorm, RMSNorm)
    assert isinstance(separate.mlp.act_fn, SiluAndMul)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        getattr(separate, norm).weight = getattr(fused, norm).weight
    for name in SHAPES:
        assert torch.equal(fused.get_submodule(name).tiles, separate.get_submodule(name).tiles)
    assert all(map(torch.equal, outputs(fused), outputs(separate)))


def test_a_fused_layer_compiles_into_one_graph(plugin):
    layer = loaded(plugin)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    assert all(map(torch.equal, outputs(compiled), outputs(layer)))


def test_what_is_not_known_keeps_separate_operators(plugin):
    from comet.integrations.vllm import fusion

    class GraniteDecoderLayer(LlamaDecoderLayer):
        pass

    layer = loaded(plugin, GraniteDecoderLayer)
    assert isinstance(layer.input_layernorm, RMSNorm)
    scaled = loaded(plugin, GraniteDecoderLayer)
    scaled.ada_rms_norm_t_cond = nn.Identity()
    scaled.input_layernorm.variance_size_override = 128
    assert fusion._fuse_layer(scaled) == 1
    assert isinstance(scaled.post_attention_layernorm, RMSNorm)


def test_adapters_keep_separate_operators(plugin, monkeypatch):
    monkeypatch.setattr(vllm.CONFIG, "lora_config", object(), raising=False)
    assert isinstance(loaded(plugin).input_layernorm, RMSNorm)


def test_another_loader_is_left_alone(plugin, monkeypatch):
    from vllm.model_executor.model_loader import base_loader

    from comet.integrations.vllm import fusion

    def process_weights_after_loading(model):
        raise AssertionError

    said = []
    monkeypatch.setattr(
        fusion, "logger", types.SimpleNamespace(warning_once=lambda *a: said.append(a))
    )
    monkeypatch.setattr(base_loader, "process_weights_after_loading", process_weights_after_loading)
    fusion.install()
    assert base_loader.process_weights_after_loading is process_weights_after_loading
    assert "is not fused" in said[0][0]
