# SPDX-License-Identifier: Apache-2.0
"""A checkpoint through vLLM's own loader, on a CPU: names, merged layers and what they compute."""

import importlib
import json
import types

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from comet.files import read_json_lines
from comet.integrations.transformers import quantize

pytestmark = pytest.mark.vllm
MERGED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}


@pytest.fixture(scope="module", autouse=True)
def installed():
    pytest.importorskip("vllm", reason="vLLM is not installed here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 160, "intermediate_size": 384, "num_hidden_layers": 1}
    write_model(base / "model", tiny_config("llama", **sizes))
    write_tokenizer(base / "model")
    texts = [row["text"] for row in read_json_lines(write_text(base / "text.jsonl"))]
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    quantize(base / "model", tokenizer, texts, base / "q", windows=2, context=64)
    return base / "q"


@pytest.fixture
def vllm_layers(folder, tmp_path, monkeypatch):
    """The decoder layers as vLLM builds and loads them, without attention."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import cleanup_dist_env_and_memory, parallel_state

    from comet.integrations.vllm.quantization import FmpqConfig

    llama = importlib.import_module("vllm.model_executor.models.llama")
    monkeypatch.setattr(llama, "Attention", lambda *_, **__: nn.Identity())
    hf = AutoConfig.from_pretrained(folder)
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    quantization = FmpqConfig.from_config(options["quantization_config"])
    quantization.packed_modules_mapping = llama.LlamaForCausalLM.packed_modules_mapping
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{tmp_path}/group", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
        given = types.SimpleNamespace(
            model_config=types.SimpleNamespace(hf_config=hf, dtype=torch.bfloat16),
            cache_config=None,
            quant_config=quantization,
            parallel_config=config.parallel_config,
        )
        model = nn.Module()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model.layers = nn.ModuleList(
                [llama.LlamaDecoderLayer(given, prefix="model.layers.0", config=hf)]
            )
        finally:
            torch.set_default_dtype(torch.float32)
        llama.LlamaModel.load_weights(model, _weights_of_layers(folder))
        for layer in model.modules():
            if hasattr(layer, "qweight"):
                layer.quant_method.process_weights_after_loading(layer)
        yield model.layers
    cleanup_dist_env_and_memory()


def _weights_of_layers(folder):
    """Names as vLLM hands them to a model, and tensors."""
    from safetensors.torch import load_file

    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    for file in sorted(set(index["weight_map"].values())):
        for name, tensor in load_file(folder / file).items():
            if name.startswith("model.layers."):
                yield name.removeprefix("model."), tensor


def test_merged_layers_compute_what_transformers_computes(vllm_layers, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    layer = model.model.layers[0]
    norms = vllm_layers[0].input_layernorm.weight, layer.input_layernorm.weight
    assert torch.equal(*(norm.data for norm in norms))
    for merged, names in MERGED.items():
        parts = [layer.get_submodule(name) for name in names]
        x = torch.randn(7, parts[0].in_features).bfloat16()
        with torch.no_grad():
            y, _ = vllm_layers[0].get_submodule(merged)(x)
            expected = torch.cat([part(x) for part in parts], dim=-1).float()
        assert (y.float() - expected).norm() <= 2e-2 * expected.norm(), merged
