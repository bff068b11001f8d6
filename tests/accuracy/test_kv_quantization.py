# SPDX-License-Identifier: Apache-2.0
"""Variants of the low-bit KV cache: the default is the kernels' format, the others do as named."""

import pytest
import torch
from tiny_models import tiny_config, write_model

from comet.accuracy.attention import use_kv4
from comet.accuracy.kv_quantization import KVQuantization
from comet.errors import UserError
from comet.formats import kv4
from comet.models.folder import ModelFolder

UNQUANTIZED = {"key_bits": 16, "value_bits": 16}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kv") / "model"
    config = tiny_config("llama", hidden_size=128, max_position_embeddings=160)
    return ModelFolder(write_model(path, config))


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 90, (1, 150), generator=torch.Generator().manual_seed(1))


def logits(folder, ids, options=None, **how):
    model = folder.load(torch.float32, "cpu")
    if options is not None:
        use_kv4(model, options, **how)
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def error(folder, ids, options, **how):
    exact = logits(folder, ids)
    return float((logits(folder, ids, options, **how) - exact).norm() / exact.norm())


def test_the_default_is_the_format_of_the_kernels():
    k = random(2, 3, 150, 64) * torch.linspace(0.1, 20, 64)
    default = KVQuantization()
    assert torch.equal(default.restore_keys(k), kv4.restore_keys(k))
    assert torch.equal(default.restore_values(k), kv4.restore_values(k))


@pytest.mark.parametrize("granularity", ["channel", "token", "tensor"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_error_is_at_most_half_a_step(granularity, symmetric):
    x = random(2, 3, 128, 32)
    options = KVQuantization(key_bits=5, key_granularity=granularity, symmetric=symmetric, page=32)
    over = {
        "channel": lambda y: (
            y.unflatten(-2, (-1, 32)).amax(-2, keepdim=True).expand(2, 3, 4, 32, 32).flatten(2, 3)
        ),
        "token": lambda y: y.amax(-1, keepdim=True),
        "tensor": lambda y: y.amax((1, 2, 3), keepdim=True),
    }[granularity]
    step = over(x.abs()) / 15 if symmetric else (over(x) + over(-x)) / 31
    assert ((options.restore_keys(x) - x).abs() <= 0.51 * step + 2e-3).all()


def test_groups_of_a_token_have_their_own_scale():
    x = random(1, 1, 4, 32)
    x[..., 3] = 1000.0
    whole = KVQuantization(value_bits=8).restore_values(x)
    grouped = KVQuantization(value_bits=8, group=8).restore_values(x)
    assert ((grouped - x)[..., 8:].abs() < 0.05).all()
    assert (whole - x)[..., 8:].abs().max() > 0.5


def test_clipping_moves_only_the_ends():
    x = torch.linspace(-1, 1, 64).reshape(1, 1, 1, 64)
    clipped = KVQuantization(value_bits=8, clip=0.5).restore_values(x)
    assert clipped.abs().max() == pytest.approx(0.5, abs=0.01)
    assert torch.allclose(clipped[x.abs() < 0.5], x[x.abs() < 0.5], atol=0.005)


@pytest.mark.parametrize(
    "options",
    [
        KVQuantization(**UNQUANTIZED),
        KVQuantization(**UNQUANTIZED, hadamard=True),
        KVQuantization(**UNQUANTIZED, before_rope=True),
    ],
)
def test_what_is_not_quantized_changes_nothing(folder, ids, options):
    assert error(folder, ids, options) < 1e-5


def test_smoothing_alone_changes_nothing_and_helps_outliers(folder, ids):
    config = folder.config
    heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    smoothing = {i: random(heads, size, seed=i).abs() + 0.5 for i in range(3)}
    exact = KVQuantization(**UNQUANTIZED)
    assert error(folder, ids, exact, key_smoothing=smoothing) < 1e-5
    quantized = KVQuantization(key_granularity="token")
    assert error(folder, ids, quantized, key_smoothing=smoothing) != pytest.approx(
        error(folder, ids, quantized)
    )


def test_more_bits_lose_less(folder, ids):
    errors = [
        error(folder, ids, KVQuantization(key_bits=bits, value_bits=bits)) for bits in (2, 3, 4, 8)
    ]
    assert errors == sorted(errors, reverse=True)


def test_layers_that_are_skipped_stay_exact(folder, ids):
    options = KVQuantization(key_bits=2, value_bits=2)
    assert error(folder, ids, options, layers=()) < 1e-5
    assert 0 < error(folder, ids, options, layers=(2,)) < error(folder, ids, options)


def test_keys_before_rope_differ_from_keys_after_it(folder, ids):
    before = logits(folder, ids, KVQuantization(value_bits=16, before_rope=True))
    after = logits(folder, ids, KVQuantization(value_bits=16))
    assert not torch.allclose(before, after, atol=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [{"key_bits": 9}, {"value_granularity": "row"}, {"hadamard": True, "before_rope": True}],
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"bits|granularity|Hadamard"):
        KVQuantization(**wrong)


def test_a_head_that_has_no_hadamard_is_one_line(tmp_path):
    path = write_model(tmp_path / "model", tiny_config("llama", hidden_size=24))
    model = ModelFolder(path).load(torch.float32, "cpu")
    with pytest.raises(UserError, match="Hadamard"):
        use_kv4(model, KVQuantization(hadamard=True))
