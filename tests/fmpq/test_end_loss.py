# SPDX-License-Identifier: Apache-2.0
"""Weights of calibration tokens: against gradients taken another way, and in the second moment."""

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.data.windows import text_windows
from comet.fmpq import end_loss
from comet.fmpq.end_loss import token_weights
from comet.fmpq.pipeline import Calibration
from comet.fmpq.plan import watch_layer
from comet.fmpq.statistics import ChannelStatistics
from comet.methods.method import watch_inputs
from comet.methods.pipeline import apply_method, load_method_model
from comet.methods.registry import method_named
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream


@pytest.fixture(params=["llama", "opt"])
def folder(request, tmp_path):
    write_model(tmp_path, tiny_config(request.param))
    write_tokenizer(tmp_path)
    return ModelFolder(tmp_path)


def windows():
    return torch.randint(3, 90, (3, 20), generator=torch.Generator().manual_seed(5))


def slopes(folder, layer: int, linear: str, tokens: torch.Tensor) -> torch.Tensor:
    """|dL / dy|^2 of each token, y moved by a tensor that is added to it."""
    model = folder.load()
    module = folder.family.layers_of(model)[layer].get_submodule(linear)
    moved = []

    def add(_, __, output):
        moved.append(torch.zeros_like(output, requires_grad=True))
        return output + moved[0]

    module.register_forward_hook(add)
    loss = model(tokens[None], labels=tokens[None], use_cache=False).loss * (len(tokens) - 1)
    (gradient,) = torch.autograd.grad(loss, moved[0])
    return gradient.square().sum(dim=-1).flatten()


def test_a_token_weighs_what_its_error_costs(folder, monkeypatch):
    monkeypatch.setattr(end_loss, "LARGEST", float("inf"))
    found, tokens = token_weights(folder, windows()), windows()
    layers = range(folder.config.num_hidden_layers)
    names = [f"{folder.family.layers}.{i}.{g.name}" for i in layers for g in folder.family.inputs]
    assert sorted(found) == sorted(names)
    for group in folder.family.inputs:
        wanted = torch.cat(
            [sum(slopes(folder, 1, name, part) for name in group.linears) for part in tokens]
        )
        given = found[f"{folder.family.layers}.1.{group.name}"]
        torch.testing.assert_close(given, wanted / wanted.mean(), rtol=1e-3, atol=1e-5)
    # The last token of a window predicts nothing.
    last = found[f"{folder.family.layers}.{layers[-1]}.mlp_out"].view(3, 20)[:, -1]
    assert not last.any()


def test_no_token_weighs_too_much(monkeypatch):
    squares = torch.cat((torch.ones(2, 99), torch.full((2, 1), 500.0)), dim=1)
    weights = end_loss._normalized(squares)
    assert weights.mean() == pytest.approx(1.0, abs=1e-6)
    assert weights.max() / weights.min() == pytest.approx(8 * 5.99, rel=1e-4)
    assert (end_loss._normalized(torch.zeros(2, 5)) == 1).all()


def test_second_moments_count_tokens_by_weight(folder):
    tokens, seen = windows(), {}
    weights = token_weights(folder, tokens)
    index, layer, run = next(iter(LayerStream(folder, tokens)))
    name = f"{folder.family.layers}.{index}"
    for group in folder.family.inputs:
        parts = seen[group.name] = []
        layer.get_submodule(group.linears[0]).register_forward_pre_hook(
            lambda _, x, parts=parts: parts.append(x[0].flatten(0, -2))
        )
    plans = watch_layer(layer, name, folder.family, run, 60, ("max",), True, weights)
    for group in folder.family.inputs:
        x = torch.cat(seen[group.name])[:60]
        statistics = plans[group.name].statistics
        wanted = (x * weights[f"{name}.{group.name}"][:, None]).t() @ x / 60
        torch.testing.assert_close(statistics.second_moment(), wanted, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(statistics.mean_square(), x.square().mean(dim=0))
    own = {group.name: weights[f"{name}.{group.name}"] for group in folder.family.inputs}
    inputs = watch_inputs(layer, folder.family, run, 60, own)
    for group in folder.family.inputs:
        torch.testing.assert_close(
            inputs[group.name].moment, plans[group.name].statistics.second_moment()
        )


def test_tokens_may_come_in_parts():
    x, weights = torch.randn(10, 4), torch.rand(10)
    whole, parts = (ChannelStatistics(4, 10, "x", ("max",), True, weights) for _ in range(2))
    whole.update(x)
    for part in x.split(3):
        parts.update(part)
    torch.testing.assert_close(parts.second_moment(), whole.second_moment())


def test_a_method_takes_weights_that_are_there_or_makes_them(folder, tmp_path):
    calibration = Calibration(write_text(tmp_path / "text.jsonl"), "words", 2, 48)
    windows = text_windows(folder.tokenizer(), calibration.path, "\n\n", 48, range(2))
    weights = token_weights(folder, windows)
    given = {
        "as the paper": ({}, None),
        "made": ({"end_loss": True}, None),
        "there": ({"end_loss": True}, weights),
        "not asked for": ({}, weights),
    }
    found = {}
    for name, (settings, there) in given.items():
        method = method_named("gptq-w4a16", settings)
        apply_method(name, method, folder, calibration, tmp_path / name, weights=there)
        model = load_method_model(tmp_path / name, folder, torch.float32, "cpu")
        layer = folder.family.layers_of(model)[0]
        found[name] = layer.get_submodule(folder.family.linears[0]).weight
    assert torch.equal(found["made"], found["there"])
    assert torch.equal(found["as the paper"], found["not asked for"])
    assert not torch.equal(found["made"], found["as the paper"])
