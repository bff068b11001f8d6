# SPDX-License-Identifier: Apache-2.0
"""The stand-ins of vLLM against the real thing; runs where vLLM 0.24 is installed."""

import importlib
import inspect

import pytest
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
