# SPDX-License-Identifier: Apache-2.0
"""The stand-ins of vLLM against the real thing; runs where vLLM 0.24 is installed."""

import importlib
import inspect
import pickle
import types

import pytest
import torch
import vllm_standins as standins

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module", autouse=True)
def installed():
    pytest.importorskip("vllm", reason="vLLM is not installed here")


def real(module: str, name: str):
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    "module, name",
    [
        (module, name)
        for module, members in standins.MODULES.items()
        for name in members
        if name[0].isupper() and not name.isupper() and name != "LinearBase"
    ],
)
def test_methods_take_what_the_real_ones_take(module, name):
    standin, genuine = standins.MODULES[module][name], real(module, name)
    for method, member in vars(standin).items():
        if method.startswith("_") or not callable(member):
            continue
        wanted = list(inspect.signature(member).parameters)
        assert list(inspect.signature(getattr(genuine, method)).parameters) == wanted


def test_the_linear_method_takes_what_vllm_passes():
    from comet.integrations.vllm.quantization import FmpqConfig, FmpqLinearMethod

    base = real(f"{standins.LAYERS}.linear", "LinearMethodBase")
    for method in ("create_weights", "apply", "process_weights_after_loading"):
        wanted = list(inspect.signature(getattr(base, method)).parameters)
        assert list(inspect.signature(getattr(FmpqLinearMethod, method)).parameters) == wanted
    assert not inspect.isabstract(FmpqConfig)
    assert not inspect.isabstract(FmpqLinearMethod)


def test_the_entry_point_registers_the_method():
    from vllm.model_executor.layers.quantization import get_quantization_config

    import comet.integrations.vllm as entry

    entry.register()
    assert get_quantization_config("fmpq").__name__ == "FmpqConfig"


def test_vllm_handles_the_page_size_as_its_own():
    from comet.integrations.vllm import hooks

    assert hooks.obstacle() is None
    sizes = {"block_size": 64, "num_kv_heads": 8, "head_size": 128, "dtype": torch.uint8}
    spec = hooks.KV4Spec(**sizes)
    assert spec.page_size_bytes == 71680
    merged = hooks.KV4Spec.merge([spec, spec])
    assert type(merged) is hooks.KV4Spec
    assert pickle.loads(pickle.dumps(merged)) == spec
    assert spec.copy_with_new_block_size(128).page_size_bytes == 2 * 71680


def test_vllm_finds_and_accepts_the_backend(monkeypatch):
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    import comet.integrations.vllm as entry
    from comet.integrations.vllm import attention

    entry.register()
    assert AttentionBackendEnum.CUSTOM.get_class() is attention.KV4Backend
    parallel = types.SimpleNamespace(
        decode_context_parallel_size=1, prefill_context_parallel_size=1
    )
    config = types.SimpleNamespace(
        use_v2_model_runner=True, speculative_config=None, parallel_config=parallel
    )
    monkeypatch.setattr(attention, "get_current_vllm_config", lambda: config)
    options = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 64,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
    }
    check = attention.KV4Backend.validate_configuration
    assert check(**options) == []
    assert check(**options | {"head_size": 96}) == ["head_size not supported"]
    assert check(**options | {"block_size": 16}) == ["block_size not supported"]
    config.use_v2_model_runner = False
    assert "VLLM_USE_V2_MODEL_RUNNER" in check(**options)[0]
    assert not inspect.isabstract(attention.KV4MetadataBuilder)
    assert not inspect.isabstract(attention.KV4Attention)


def test_the_loader_of_dummy_weights_is_the_one_that_is_replaced():
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    from comet.speed.serving import vllm_weights

    vllm_weights.register()
    loader = get_model_loader(LoadConfig(load_format="dummy"))
    assert type(loader).__name__ == "RandomWeights"
    assert list(inspect.signature(loader.load_weights).parameters) == ["model", "model_config"]
