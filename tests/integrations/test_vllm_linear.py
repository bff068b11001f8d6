# SPDX-License-Identifier: Apache-2.0
"""The linear layers of an FMPQ checkpoint inside vLLM, on stand-ins of its classes."""

import pytest
import torch
import vllm_standins as vllm
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.errors import UserError
from comet.fmpq.model import load_checkpoint_model
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.formats.checkpoint import Checkpoint
from comet.models.folder import ModelFolder

PACKED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}
FIELDS = ("qweight", "group_scale", "group_zero", "channel_scale", "perm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("vllm")
    write_model(base / "model", tiny_config("qwen2", hidden_size=160, intermediate_size=384))
    write_tokenizer(base / "model")
    calibration = Calibration(write_text(base / "text.jsonl"), "words", windows=2, context=64)
    model = ModelFolder(base / "model")
    quantize_model(model, calibration, base / "q", FMPQOptions(), "fmpq", "tiny", {}, seed=0)
    return base / "q"


@pytest.fixture
def plugin(monkeypatch):
    vllm.install(monkeypatch)
    monkeypatch.setattr(vllm.CONFIG.load_config, "load_format", "auto")
    from comet.integrations.vllm import quantization

    return quantization


def configured(plugin, checkpoint: Checkpoint):
    config = plugin.FmpqConfig.from_config(checkpoint.facts)
    config.packed_modules_mapping = PACKED
    return config


def loaded(plugin, checkpoint, merged: str, kind: str):
    """A layer of vLLM with the checkpoint's tensors, and the names of its parts."""
    path, _, leaf = merged.rpartition(".")
    names = [f"{path}.{part}" for part in PACKED.get(leaf, [leaf])]
    weights = [checkpoint.packed_weight(name) for name in names]
    sizes = [weight.out_features for weight in weights]
    channels = weights[0].layout.channels
    biased = f"{names[0]}.bias" in checkpoint.weight_map
    layer = vllm.LinearBase(
        channels, sizes, configured(plugin, checkpoint), merged, bias=biased, kind=kind
    )
    for shard, name in enumerate(names):
        for field in FIELDS:
            parameter = getattr(layer, field)
            tensor = checkpoint.tensor(f"{name}.{field}")
            parameter.weight_loader(parameter, tensor, *([shard] if len(names) > 1 else []))
    if biased:
        biases = [checkpoint.tensor(f"{name}.bias") for name in names]
        layer.bias.data = torch.cat(biases).bfloat16()
    layer.quant_method.process_weights_after_loading(layer)
    return layer, names


@pytest.mark.parametrize(
    "merged, kind",
    [
        ("model.layers.1.self_attn.qkv_proj", "qkv"),
        ("model.layers.1.self_attn.o_proj", "row"),
        ("model.layers.1.mlp.gate_up_proj", "merged"),
        ("model.layers.1.mlp.down_proj", "row"),
    ],
)
def test_a_merged_layer_is_its_parts(plugin, folder, merged, kind):
    checkpoint = Checkpoint(folder)
    layer, names = loaded(plugin, checkpoint, merged, kind)
    model = load_checkpoint_model(folder, torch.float32, path="integer")
    parts = [model.get_submodule(name) for name in names]
    x = torch.randn(2, 3, parts[0].in_features).bfloat16()
    expected = torch.cat([part(x.float()) for part in parts], dim=-1)
    torch.testing.assert_close(layer(x).float(), expected, rtol=2**-7, atol=2e-2)
    assert {name for name, _ in layer.named_parameters()} <= {"tiles", "scales", "order", "bias"}


def test_unquantized_layers_and_attention_are_left_alone(plugin, folder):
    config = configured(plugin, Checkpoint(folder))
    head = vllm.LinearBase(160, [96], config, "lm_head")
    assert isinstance(head.quant_method, vllm.UnquantizedLinearMethod)
    assert config.get_quant_method(torch.nn.Identity(), "model.layers.0.self_attn.attn") is None


def test_merged_layers_need_one_permutation(plugin, folder):
    checkpoint = Checkpoint(folder)
    config = configured(plugin, checkpoint)
    layer = vllm.LinearBase(160, [384, 384], config, "model.layers.0.mlp.gate_up_proj")
    order = checkpoint.tensor("model.layers.0.mlp.gate_proj.perm")
    layer.perm.weight_loader(layer.perm, order, 0)
    with pytest.raises(UserError, match="different permutations"):
        layer.perm.weight_loader(layer.perm, order.flip(0), 1)


def test_what_does_not_fit_is_one_line(plugin, folder):
    checkpoint = Checkpoint(folder)
    config = configured(plugin, checkpoint)
    method = config.get_quant_method(
        vllm.LinearBase(160, [96], config, "lm_head"), "model.layers.0.mlp.down_proj"
    )
    sizes = {"output_partition_sizes": [8], "output_size": 8, "params_dtype": torch.float16}
    layer = torch.nn.Identity()
    with pytest.raises(UserError, match="tensor-parallel-size 1"):
        method.create_weights(layer, 192, input_size=384, weight_loader=None, **sizes)
    with pytest.raises(UserError, match="quantize the model again"):
        method.create_weights(layer, 512, input_size=512, weight_loader=None, **sizes)
    del config.layers["model.layers.0.mlp.up_proj"]
    with pytest.raises(UserError, match="no quantized model.layers.0.mlp.up_proj"):
        vllm.LinearBase(160, [384, 384], config, "model.layers.0.mlp.gate_up_proj")
    with pytest.raises(UserError, match="format version 9"):
        plugin.FmpqConfig(9, {}, {})


def test_dummy_weights_are_random_and_finite(plugin, folder, monkeypatch):
    monkeypatch.setattr(vllm.CONFIG.load_config, "load_format", "dummy")
    config = configured(plugin, Checkpoint(folder))
    layer = vllm.LinearBase(384, [160], config, "model.layers.0.mlp.down_proj", kind="row")
    layer.channel_scale.data.uniform_(-1e-3, 1e-3)
    layer.quant_method.process_weights_after_loading(layer)
    y = layer(torch.randn(4, 384).bfloat16())
    assert torch.isfinite(y).all()
    assert y.unique().numel() > 100
    assert layer.order is None
    layer = vllm.LinearBase(160, [160], config, "model.layers.0.self_attn.o_proj", kind="row")
    layer.quant_method.process_weights_after_loading(layer)
    assert sorted(layer.order.tolist())[96:] == list(range(160))
    assert torch.isfinite(layer(torch.randn(4, 160).bfloat16())).all()


def test_registering_twice_is_harmless(plugin):
    import comet.integrations.vllm as entry

    vllm.METHODS[:] = ["fp8"]
    entry.register()
    entry.register()
    assert vllm.METHODS == ["fp8", "fmpq"]
    assert vllm.CONFIGS["fmpq"].__name__ == "FmpqConfig"
