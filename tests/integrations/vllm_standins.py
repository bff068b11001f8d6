# SPDX-License-Identifier: Apache-2.0
"""The few classes of vLLM that the plugin's linear layers touch, so that tests need no vLLM.

One rank, and only what the plugin calls. ``test_vllm_signatures`` compares them with the real ones
where vLLM is installed.
"""

import sys
import types

import torch
import vllm_attention_standins
from torch import nn

SUPPORTED: list[str] = []
METHODS: list[str] = ["fp8"]
CONFIGS: dict[str, type] = {}
CONFIG = types.SimpleNamespace(load_config=types.SimpleNamespace(load_format="auto"))


class BasevLLMParameter(nn.Parameter):
    """A parameter that knows how checkpoint tensors are copied into it."""

    def __new__(cls, data, **kwargs):
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data, weight_loader):
        self.weight_loader = weight_loader

    def _assert_and_load(self, loaded_weight):
        assert self.data.shape == loaded_weight.shape
        self.data.copy_(loaded_weight)

    def load_column_parallel_weight(self, loaded_weight):
        self._assert_and_load(loaded_weight)

    def load_row_parallel_weight(self, loaded_weight):
        self._assert_and_load(loaded_weight)

    def load_merged_column_weight(self, loaded_weight, **kwargs):
        self._assert_and_load(loaded_weight)

    def load_qkv_weight(self, loaded_weight, **kwargs):
        self._assert_and_load(loaded_weight)


class _Column(BasevLLMParameter):
    def __init__(self, output_dim, **kwargs):
        self.output_dim = output_dim
        super().__init__(**{k: v for k, v in kwargs.items() if k in ("data", "weight_loader")})

    def load_merged_column_weight(self, loaded_weight, **kwargs):
        part = self.data.narrow(self.output_dim, kwargs["shard_offset"], kwargs["shard_size"])
        assert part.shape == loaded_weight.shape
        part.copy_(loaded_weight)

    load_qkv_weight = load_merged_column_weight


class ChannelQuantScaleParameter(_Column):
    pass


class GroupQuantScaleParameter(_Column):
    pass


class PackedvLLMParameter(_Column):
    pass


class LinearBase(nn.Module):
    """A linear layer of ``parts`` outputs that were merged into one."""

    def __init__(self, input_size, parts, quant_config, prefix, bias=False, kind="column"):
        super().__init__()
        self.parts, self.kind = parts, kind
        self.quant_method = quant_config.get_quant_method(self, prefix=prefix)
        if isinstance(self.quant_method, UnquantizedLinearMethod):
            return
        assert type(self.quant_method).__name__ in SUPPORTED
        self.quant_method.create_weights(
            layer=self,
            input_size_per_partition=input_size,
            output_partition_sizes=parts,
            input_size=input_size,
            output_size=sum(parts),
            params_dtype=torch.bfloat16,
            weight_loader=self.weight_loader_v2,
        )
        self.bias = nn.Parameter(torch.zeros(sum(parts), dtype=torch.bfloat16)) if bias else None

    def weight_loader_v2(self, param, loaded_weight, shard=None):
        if shard is None and self.kind == "row":
            return param.load_row_parallel_weight(loaded_weight=loaded_weight)
        if shard is None:
            return param.load_column_parallel_weight(loaded_weight=loaded_weight)
        load = param.load_qkv_weight if self.kind == "qkv" else param.load_merged_column_weight
        offset, size = sum(self.parts[:shard]), self.parts[shard]
        more = {"shard_id": "qkv"[shard], "num_heads": 1} if self.kind == "qkv" else {}
        return load(loaded_weight=loaded_weight, shard_offset=offset, shard_size=size, **more)

    def forward(self, x):
        return self.quant_method.apply(self, x, self.bias)


class LinearMethodBase:
    pass


class UnquantizedLinearMethod(LinearMethodBase):
    pass


class QuantizationConfig:
    def __init__(self):
        super().__init__()
        self.packed_modules_mapping = {}


def register_weight_loader_v2_supported_method(cls):
    SUPPORTED.append(cls.__name__)
    return cls


def register_quantization_config(quantization):
    def register(cls):
        METHODS.append(quantization)
        CONFIGS[quantization] = cls
        return cls

    return register


def process_weights_after_loading(model, model_config, target_device):
    for module in model.modules():
        if isinstance(getattr(module, "quant_method", None), LinearMethodBase):
            module.quant_method.process_weights_after_loading(module)


LAYERS = "vllm.model_executor.layers"
MODULES = {
    "vllm": {},
    "vllm.model_executor": {},
    "vllm.model_executor.parameter": {
        "BasevLLMParameter": BasevLLMParameter,
        "ChannelQuantScaleParameter": ChannelQuantScaleParameter,
        "GroupQuantScaleParameter": GroupQuantScaleParameter,
        "PackedvLLMParameter": PackedvLLMParameter,
    },
    "vllm.model_executor.model_loader": {},
    "vllm.model_executor.model_loader.base_loader": {
        "process_weights_after_loading": process_weights_after_loading
    },
    LAYERS: {},
    f"{LAYERS}.linear": {
        "LinearBase": LinearBase,
        "LinearMethodBase": LinearMethodBase,
        "UnquantizedLinearMethod": UnquantizedLinearMethod,
        "register_weight_loader_v2_supported_method": register_weight_loader_v2_supported_method,
    },
    f"{LAYERS}.quantization": {
        "QUANTIZATION_METHODS": METHODS,
        "register_quantization_config": register_quantization_config,
    },
    f"{LAYERS}.quantization.base_config": {"QuantizationConfig": QuantizationConfig},
}


MODULES |= vllm_attention_standins.MODULES
MODULES["vllm.config"] = {"get_current_vllm_config": lambda: CONFIG}


def install(monkeypatch) -> None:
    """Let ``import vllm...`` find the stand-ins until the test ends."""
    for name, members in MODULES.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in [name for name in sys.modules if name.startswith("comet.integrations.vllm")]:
        monkeypatch.delitem(sys.modules, name)
