# SPDX-License-Identifier: Apache-2.0
"""The quantized linear layer of all methods: exact transforms, rounding as torch rounds."""

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.errors import UserError
from comet.fmpq.pipeline import Calibration
from comet.methods.linear import (
    ActivationGrid,
    Divide,
    FakeLinear,
    Gather,
    Rotate,
    round_asymmetric,
    round_symmetric,
    transformed_weight,
)
from comet.methods.pipeline import apply_method, load_method_model
from comet.methods.registry import METHODS, method_named
from comet.methods.rtn import round_weight
from comet.models.folder import ModelFolder


def orthogonal(size: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(size, size))[0]


def all_transforms(channels: int) -> tuple:
    return (
        Divide(torch.rand(channels) + 0.5),
        Gather(torch.randperm(channels)),
        Rotate(orthogonal(8), orthogonal(channels // 8)),
        Rotate(orthogonal(4)),
    )


def test_transforms_leave_the_product_as_it_is():
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 24)
    transforms = all_transforms(48)
    weight = transformed_weight(linear.weight.detach(), transforms)
    x = torch.randn(3, 5, 48)
    fake = FakeLinear(weight, linear.bias, transforms=transforms)
    torch.testing.assert_close(fake(x), linear(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(weight, linear.weight, atol=0.1)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_symmetric_rounding_is_torchs(bits):
    torch.manual_seed(1)
    x = torch.randn(7, 32)
    largest = 2 ** (bits - 1) - 1
    scale = x.abs().amax(dim=1) / largest
    expected = torch.fake_quantize_per_channel_affine(
        x, scale, torch.zeros(7, dtype=torch.int32), 0, -largest, largest
    )
    torch.testing.assert_close(round_symmetric(x, bits), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(round_weight(x, bits, None), expected, rtol=1e-6, atol=1e-6)


def test_asymmetric_rounding_is_torchs():
    torch.manual_seed(2)
    x = torch.randn(7, 32) + 1
    low, high = x.amin(dim=1).clamp(max=0), x.amax(dim=1).clamp(min=0)
    scale = (high - low) / 15
    zero = (-low / scale).round().int()
    expected = torch.fake_quantize_per_channel_affine(x, scale, zero, 0, 0, 15)
    torch.testing.assert_close(round_asymmetric(x, 4), expected, rtol=1e-6, atol=1e-6)


def test_a_group_is_rounded_as_if_alone():
    torch.manual_seed(3)
    x = torch.randn(2, 40)
    grid = ActivationGrid(bits=4, group=16, int8_channels=8)
    restored = grid.restore(x)
    torch.testing.assert_close(restored[:, 16:32], round_symmetric(x[:, 16:32], 4))
    torch.testing.assert_close(restored[:, 32:], round_symmetric(x[:, 32:], 8))
    assert (restored[:, 32:] - x[:, 32:]).abs().max() < (restored[:, :32] - x[:, :32]).abs().max()
    assert torch.equal(ActivationGrid().restore(x), x)


def test_a_quantized_model_reads_back_as_it_was_made(tmp_path):
    model = tmp_path / "model"
    write_model(model, tiny_config("qwen2", hidden_size=160, intermediate_size=384))
    write_tokenizer(model)
    calibration = Calibration(write_text(tmp_path / "text.jsonl"), "words", windows=2, context=64)
    folder = ModelFolder(model)
    apply_method("rtn-w8a8", METHODS["rtn-w8a8"], folder, calibration, tmp_path / "q")
    loaded = load_method_model(tmp_path / "q", folder, torch.float32, "cpu")
    original = folder.load(torch.float32, "cpu")
    tokens = torch.arange(20)[None]
    layers = zip(folder.family.layers_of(loaded), folder.family.layers_of(original), strict=True)
    for quantized, layer in layers:
        for name in folder.family.linears:
            linear = layer.get_submodule(name)
            weight = round_weight(linear.weight.detach(), 8, None)
            assert torch.equal(quantized.get_submodule(name).weight, weight)
            x = torch.randn(4, linear.in_features)
            expected = torch.nn.functional.linear(round_symmetric(x, 8), weight, linear.bias)
            torch.testing.assert_close(quantized.get_submodule(name)(x), expected)
    with torch.no_grad():
        assert torch.isfinite(loaded(tokens).logits).all()


def test_transforms_survive_the_disk():
    torch.manual_seed(4)
    fake = FakeLinear(
        torch.randn(8, 48), torch.randn(8), ActivationGrid(bits=4, group=16), all_transforms(48)
    )
    again = FakeLinear.from_description(fake.description(), fake.state_dict())
    x = torch.randn(5, 48)
    assert torch.equal(again(x), fake(x))


def test_an_unknown_method_or_setting_is_one_line():
    with pytest.raises(UserError, match="'awqq' is unknown; use one of rtn-w8a8"):
        method_named("awqq")
    with pytest.raises(UserError, match=r"methods\.rtn-w8a8\.bits is unknown; use one of"):
        method_named("rtn-w8a8", {"bits": 3})
    assert method_named("rtn-w4a16", {"weight_bits": 3}).weight_bits == 3


def test_a_folder_without_a_quantized_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match="holds no quantized model"):
        load_method_model(tmp_path, None, torch.float32, "cpu")
