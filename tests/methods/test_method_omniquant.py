# SPDX-License-Identifier: Apache-2.0
"""OmniQuant: nothing learned leaves plain rounding, learning lowers the layer's own error."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
from layer_inputs import (
    FAMILY,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    block,
    correlated,
    decoder_layer,
    layer_inputs,
)
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.data.windows import text_windows
from comet.fmpq.pipeline import Calibration
from comet.methods.linear import round_asymmetric
from comet.methods.omniquant import OmniQuant
from comet.methods.pipeline import apply_method, load_method_model, replace_linears
from comet.methods.rtn import RoundToNearest, round_weight
from comet.models.folder import ModelFolder

W4A4 = OmniQuant("W4A4", group=None, activation_bits=4, transform=True)


def run(layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """A decoder layer without attention's softmax: all linears, a residual, a gate."""
    attention, mlp = layer.self_attn, layer.mlp
    values = attention.v_proj(hidden).unflatten(-1, (KV_HEADS, HEAD_DIM))
    values = values.repeat_interleave(HEADS // KV_HEADS, dim=-2).flatten(-2)
    keys = attention.k_proj(hidden).repeat(1, 1, HEADS // KV_HEADS)
    hidden = hidden + attention.o_proj(values * (attention.q_proj(hidden) + keys).sigmoid())
    gated = torch.nn.functional.silu(mlp.gate_proj(hidden)) * mlp.up_proj(hidden)
    return hidden + mlp.down_proj(gated)


def problem(seed: int = 0) -> tuple:
    """A layer, its calibration inputs, and a block whose target is the layer's own output."""
    layer = decoder_layer(seed)
    hidden = correlated(6 * 32, HIDDEN, seed).view(6, 32, HIDDEN)
    target = torch.cat([run(layer, window[None]) for window in hidden])
    return layer, layer_inputs(), replace(block(), hidden=hidden, target=target, forward=run)


def error_after(method, seed: int = 0) -> float:
    layer, inputs, whole = problem(seed)
    quantized = method.quantize_layer(layer, FAMILY, inputs, whole)
    replace_linears(layer, quantized)
    with torch.no_grad():
        output = torch.cat([run(layer, window[None]) for window in whole.hidden])
    return float((output - whole.target).square().mean())


def test_without_steps_it_is_rounding_of_nearly_the_whole_range():
    layer, inputs, whole = problem()
    weight = layer.self_attn.q_proj.weight.clone()
    untrained = OmniQuant("W4A16", group=16, epochs=0)
    restored = untrained.quantize_layer(layer, FAMILY, inputs, whole)["self_attn.q_proj"].weight
    parts = [
        round_asymmetric(part, 4, float(torch.sigmoid(torch.tensor(4.0))))
        for part in weight.split(16, dim=1)
    ]
    torch.testing.assert_close(restored, torch.cat(parts, dim=1))


@pytest.mark.parametrize("group", [16, None])
def test_learned_clipping_beats_round_to_nearest(group):
    ours = OmniQuant("W4A16", group=group, epochs=6, clip_rate=0.1)
    nearest = RoundToNearest("RTN", weight_group=group, weight_symmetric=False)
    assert error_after(ours) < 0.95 * error_after(nearest)


def test_the_transformation_helps_where_activations_are_rounded():
    nothing = replace(W4A4, epochs=0, transform=False)
    fixed, learned = replace(W4A4, epochs=0), replace(W4A4, epochs=6)
    assert error_after(learned) < error_after(fixed) < error_after(nothing)


def test_scales_fold_into_what_comes_before():
    layer, inputs, whole = problem()
    quantized = W4A4.quantize_layer(layer, FAMILY, inputs, whole)
    scales = {name: q.transforms[0].scale for name, q in quantized.items() if q.transforms}
    assert set(scales) == set(FAMILY.linears) - {"mlp.down_proj"}
    assert torch.equal(scales["self_attn.q_proj"], scales["self_attn.v_proj"])
    by_head = scales["self_attn.o_proj"].view(KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    assert torch.equal(by_head[:, 0], by_head[:, 1])
    assert not torch.equal(by_head[0, 0], by_head[1, 0])


def test_the_written_layer_is_the_one_that_was_trained():
    layer, inputs, whole = problem()
    quantized = W4A4.quantize_layer(layer, FAMILY, inputs, whole)
    for name, trained in ((name, layer.get_submodule(name)) for name in FAMILY.linears):
        x = inputs[FAMILY.group_of(name).name].sample
        with torch.no_grad():
            torch.testing.assert_close(quantized[name](x), trained(x), rtol=1e-4, atol=1e-4)


@pytest.fixture
def small_model(tmp_path) -> tuple[ModelFolder, Calibration]:
    write_model(tmp_path / "model", tiny_config("llama"))
    write_tokenizer(tmp_path / "model")
    text = write_text(tmp_path / "text.jsonl")
    return ModelFolder(tmp_path / "model"), Calibration(text, "words", windows=2, context=32)


@dataclass(frozen=True)
class Witness(RoundToNearest):
    """Keeps the blocks that it is shown."""

    trains: ClassVar[bool] = True
    blocks: list = field(default_factory=list)

    def quantize_layer(self, layer, family, inputs, block):
        self.blocks.append((block.hidden.clone(), block.target))
        return super().quantize_layer(layer, family, inputs, block)


def test_a_training_method_sees_quantized_inputs_and_exact_targets(tmp_path, small_model):
    folder, calibration = small_model
    witness = Witness("RTN", calibrated=False, sequential=True)
    apply_method("witness", witness, folder, calibration, tmp_path / "q")
    tokens = text_windows(folder.tokenizer(), calibration.path, "\n\n", 32, range(2))
    with torch.no_grad():
        exact = folder.load(torch.float32, "cpu").model(tokens, output_hidden_states=True)
        quantized = load_method_model(tmp_path / "q", folder, torch.float32, "cpu").model(
            tokens, output_hidden_states=True
        )
    for index, (hidden, target) in enumerate(witness.blocks):
        torch.testing.assert_close(hidden, quantized.hidden_states[index], rtol=1e-4, atol=1e-4)
        if index + 1 < len(witness.blocks):
            expected = exact.hidden_states[index + 1]
            torch.testing.assert_close(target, expected, rtol=1e-4, atol=1e-4)


def test_on_a_whole_model(tmp_path, small_model):
    folder, calibration = small_model
    apply_method("omniquant-w4a4", replace(W4A4, epochs=1), folder, calibration, tmp_path / "q")
    loaded = load_method_model(tmp_path / "q", folder, torch.float32, "cpu")
    with torch.no_grad():
        assert torch.isfinite(loaded(torch.arange(20)[None]).logits).all()
    evaluation = Evaluation(
        *("omniquant-w4a4", "tiny", folder.path, "words", "test", calibration.path),
        context=32,
        windows="0-1",
        checkpoint=tmp_path / "q",
    )
    (record,) = evaluate_row(evaluation, {}, 0)
    assert "epochs=1" in record.method["quantizer"]["settings"] and record.median > 1
    for layer in folder.family.layers_of(loaded):
        weight = layer.mlp.down_proj.weight
        torch.testing.assert_close(round_weight(weight, 8, None), weight, atol=0.05, rtol=0)
        assert all(len(row.unique()) <= 16 for row in weight)
