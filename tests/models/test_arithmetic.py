# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from comet.models.arithmetic import exact_products, scoring_type, tensor_type


@pytest.fixture(autouse=True)
def as_it_was():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_tf32_is_about_products_while_scoring():
    assert tensor_type("tf32") == torch.float32
    assert torch.get_float32_matmul_precision() == "highest"
    assert scoring_type("tf32") == torch.float32
    assert torch.get_float32_matmul_precision() == "high"
    with exact_products():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_other_arithmetic_keeps_products_exact(name):
    scoring_type("tf32")
    assert scoring_type(name) == tensor_type(name) == getattr(torch, name)
    assert torch.get_float32_matmul_precision() == "highest"
