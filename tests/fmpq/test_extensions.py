# SPDX-License-Identifier: Apache-2.0
"""What goes beyond the paper's method: weights for rounded inputs, migration, sequential."""

from functools import partial

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.errors import UserError
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.migration import migrate
from comet.fmpq.model import load_checkpoint_model
from comet.fmpq.noise import known_share, noise_fit, rounding_noise
from comet.fmpq.options import FMPQOptions
from comet.fmpq.permutation import outliers_last
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.fmpq.plan import watch_layer
from comet.fmpq.weights import quantize_weight
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_fitted_weight_has_the_least_error_under_noise():
    x = random(4000, 40, seed=1) @ random(40, 40, seed=2)
    moment, noise, weight = (
        x.t() @ x / 4000,
        random(40, seed=3).square() * 20,
        random(6, 40, seed=4),
    )
    matrix, noisy = noise_fit(moment, noise)

    def error(candidate):
        difference = candidate - weight
        clean = torch.einsum("nk,kl,nl->", difference, moment, difference)
        return float(clean + (candidate.square() * noise).sum())

    fitted = weight @ matrix
    assert error(fitted) < 0.9 * error(weight)
    for seed in range(5):
        assert error(fitted) < error(fitted + 0.01 * random(6, 40, seed=seed))
    assert torch.allclose(noisy, moment + torch.diag(noise))


def test_without_noise_weights_stay():
    x = random(400, 40)
    matrix, noisy = noise_fit(x.t() @ x, torch.zeros(40))
    torch.testing.assert_close(matrix, torch.eye(40), rtol=0, atol=1e-4)
    assert torch.equal(noisy, x.t() @ x)


@pytest.mark.parametrize("hadamard", [False, True])
def test_noise_is_the_error_of_rounding(hadamard):
    x = random(2000, 384)
    layout = BlockLayout.of(384, 1)
    permutation = outliers_last(x.abs().amax(dim=0), layout, "moved")
    options = FMPQOptions(act_hadamard=hadamard)
    noise = rounding_noise(x, layout, permutation, options)
    # A uniform error within a step of max / 7: step^2 / 12.
    assert float(noise[:256].mean()) == pytest.approx((3.0 / 7) ** 2 / 12, rel=0.35)
    assert noise[256:].max() < 0.01 * noise[:256].min()


def test_a_fitted_layer_is_closer_on_rounded_inputs():
    low_rank = random(384, 40, seed=5) @ random(40, 384, seed=8)
    x = random(3000, 384, seed=6) @ (low_rank + 0.3 * random(384, 384, seed=9))
    moment, weight = x.t() @ x / 3000, random(64, 384, seed=7) * 0.1
    layout = BlockLayout.of(384, 0)
    permutation = natural_permutation(layout)
    errors = {}
    for share in (0.0, 1.0):
        options = FMPQOptions(act_noise=share)
        noise = share * rounding_noise(x, layout, permutation, options) if share else None
        packed = quantize_weight(weight, moment, layout, permutation, options, noise)
        layer = W4AxLinear(packed, act_scale=options.act_scale)
        errors[share] = (layer(x) - x @ weight.t()).square().mean()
    assert errors[1.0] < 0.5 * errors[0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"act_noise": 2.0}, "fmpq.act_noise is 2.0"),
        ({"migration": -1}, "fmpq.migration is -1"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        FMPQOptions.from_config(options)


def test_a_short_calibration_is_trusted_less():
    assert known_share(100, 150) == 0.0
    assert known_share(100, 400) == 0.5
    assert known_share(100, 10**6) > 0.99


def folder_of(path, family):
    sizes = {"hidden_size": 160, "intermediate_size": 384}
    if family == "opt":
        sizes = {"hidden_size": 160, "ffn_dim": 384, "word_embed_proj_dim": 160}
    write_model(path, tiny_config(family, **sizes))
    write_tokenizer(path)
    return ModelFolder(path)


@pytest.mark.parametrize("family", ["qwen2", "opt"])
def test_migration_leaves_the_layer_as_it_is(tmp_path, family):
    folder = folder_of(tmp_path / "model", family)
    tokens = torch.randint(3, 90, (2, 30), generator=torch.Generator().manual_seed(1))
    for _, layer, run in LayerStream(folder, tokens):
        watch = partial(
            watch_layer, layer, "x", folder.family, run, 60, metrics=("max",), correlations=True
        )
        plans, inputs = watch(), LayerStreamOutput()
        handle = layer.register_forward_hook(inputs)
        run()
        migrated = migrate(layer, folder.family, plans, 0.5)
        run()
        handle.remove()
        before, after = inputs.outputs[:2], inputs.outputs[2:]
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
        for name, seen in watch().items():
            expected = seen.statistics.metric("max")
            torch.testing.assert_close(migrated[name].statistics.metric("max"), expected)
            torch.testing.assert_close(migrated[name].sample, seen.sample, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                migrated[name].statistics.second_moment(), seen.statistics.second_moment()
            )
        spread = plans["mlp_in"].statistics.metric("max").log().std()
        assert migrated["mlp_in"].statistics.metric("max").log().std() < spread


class LayerStreamOutput:
    """Keeps what a layer gives for each window."""

    def __init__(self):
        self.outputs = []

    def __call__(self, _, __, output):
        self.outputs.append(output[0] if isinstance(output, tuple) else output)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_every_extension_gives_a_checkpoint_that_loads(tmp_path, family):
    folder = folder_of(tmp_path / "model", family)
    text = write_text(tmp_path / "text.jsonl")
    options = FMPQOptions(
        act_zero_point=True,
        act_hadamard=True,
        channel_order="moved",
        act_noise=0.5,
        end_loss=True,
        migration=0.3,
        sequential=True,
    )
    calibration = Calibration(text, "words", windows=30, context=48)
    quantize_model(folder, calibration, tmp_path / "out", options, "fmpq", "tiny", {}, seed=0)
    ids = torch.randint(3, 90, (1, 40), generator=torch.Generator().manual_seed(1))
    model = load_checkpoint_model(tmp_path / "out")
    with torch.no_grad():
        exact, ours = folder.load()(ids).logits, model(ids).logits
    assert torch.nn.functional.cosine_similarity(exact, ours, dim=-1).mean() > 0.8
    for layer in model.modules():
        if isinstance(layer, W4AxLinear):
            x = random(9, layer.in_features)
            fake = layer(x)
            layer.path = "integer"
            tolerance = 1e-5 * float(fake.abs().max())
            torch.testing.assert_close(layer(x), fake, rtol=1e-5, atol=tolerance)
