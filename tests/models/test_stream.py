# SPDX-License-Identifier: Apache-2.0
"""Streaming a model layer by layer gives what the whole model gives, one layer at a time."""

import weakref

import pytest
import torch
from tiny_models import VOCAB, tiny_config, write_model

from comet.errors import UserError
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream


def windows(n: int = 3, length: int = 11) -> torch.Tensor:
    return torch.randint(3, VOCAB, (n, length), generator=torch.Generator().manual_seed(1))


def whole_model_states(
    folder: ModelFolder, ids: torch.Tensor, device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return folder.load(device=device)(ids, output_hidden_states=True).hidden_states


def assert_streams_like_the_whole_model(folder: ModelFolder, device: str = "cpu") -> None:
    ids = windows()
    states = whole_model_states(folder, ids.to(device), device)
    stream = LayerStream(folder, ids, device, progress=False)
    count = 0
    for index, _, run in stream:
        torch.testing.assert_close(stream.hidden, states[index])
        run(advance=True)
        count += 1
    assert count == stream.layer_count == 3
    normed = folder.load(device=device).get_submodule(folder.family.after_layers[0])(stream.hidden)
    torch.testing.assert_close(normed.detach(), states[-1])


def test_equals_whole_model(tiny):
    assert_streams_like_the_whole_model(ModelFolder(tiny))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_equals_whole_model_on_a_gpu(tiny):
    assert_streams_like_the_whole_model(ModelFolder(tiny), "cuda")


@pytest.mark.parametrize("tie", [True, False])
def test_shards_and_tied_heads(tmp_path, tie):
    config = tiny_config("llama", tie_word_embeddings=tie)
    write_model(tmp_path / "m", config, max_shard_size="20KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    assert_streams_like_the_whole_model(ModelFolder(tmp_path / "m"))


def test_sliding_windows_that_start_at_a_later_layer(tmp_path):
    config = tiny_config("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert len(set(config.layer_types)) == 2
    write_model(tmp_path / "m", config)
    assert_streams_like_the_whole_model(ModelFolder(tmp_path / "m"))


def test_scaled_rotary_embedding(tmp_path):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    write_model(tmp_path / "m", tiny_config("llama", rope_parameters=rope))
    assert_streams_like_the_whole_model(ModelFolder(tmp_path / "m"))


def test_projected_embeddings_of_opt(tmp_path):
    write_model(tmp_path / "m", tiny_config("opt", word_embed_proj_dim=16))
    folder = ModelFolder(tmp_path / "m")
    states = whole_model_states(folder, windows())
    stream = LayerStream(folder, windows(), progress=False)
    torch.testing.assert_close(stream.hidden, states[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtype_of_weights_and_states(tmp_path, dtype):
    write_model(tmp_path / "m", tiny_config("llama"))
    folder = ModelFolder(tmp_path / "m")
    stream = LayerStream(folder, windows(), dtype=dtype, progress=False)
    for _, layer, _ in stream:
        assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert stream.hidden.dtype == dtype
    model = folder.load(dtype)
    with torch.no_grad():
        whole = model(windows(), output_hidden_states=True).hidden_states[-1]
        torch.testing.assert_close(model.model.norm(stream.hidden), whole, rtol=0.05, atol=0.05)


def test_one_layer_alive_at_a_time(tiny, monkeypatch):
    loaded, loads = [], []
    original = ModelFolder.tensors

    def watched(self, *arguments):
        # What was loaded before is gone when the next weights come in.
        loads.append(sum(ref() is not None and not ref().is_meta for ref in loaded))
        found = original(self, *arguments)
        loaded.extend(weakref.ref(tensor) for tensor in found.values())
        return found

    monkeypatch.setattr(ModelFolder, "tensors", watched)
    stream = LayerStream(ModelFolder(tiny), windows(), progress=False)
    assert all(ref() is None for ref in loaded), "the embedding is still there"
    before_layers = len(loads)
    for _, layer, run in stream:
        loaded.extend(weakref.ref(parameter) for parameter in layer.parameters())
        run()
    assert loads[before_layers:] == [0, 0, 0]
    assert all(ref() is None or ref().is_meta for ref in loaded)


def test_run_shows_each_window_and_leaves_states_alone(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    stream = LayerStream(ModelFolder(tmp_path / "m"), windows(), progress=False)
    for _, layer, run in stream:
        seen = []
        hook = layer.mlp.down_proj.register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.append(inputs[0].shape)
        )
        before = stream.hidden.clone()
        run()
        assert torch.equal(stream.hidden, before)
        assert seen == [(1, 11, 48)] * 3
        hook.remove()
        stream.advance()
        assert not torch.equal(stream.hidden, before)


def test_changed_weights_reach_the_next_layer(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    stream = LayerStream(ModelFolder(tmp_path / "m"), windows(), progress=False)
    first = stream.hidden.clone()
    for index, layer, _ in stream:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            layer.get_submodule(name).weight.zero_()
        if index == 1:
            layer.mlp.down_proj = torch.nn.Linear(48, 32, bias=False).requires_grad_(False)
            layer.mlp.down_proj.weight.zero_()
    # With both outputs of a layer zero, only the residual is left.
    assert torch.equal(stream.hidden, first)


def test_advance_is_once_a_layer(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    stream = LayerStream(ModelFolder(tmp_path / "m"), windows(), progress=False)
    with pytest.raises(RuntimeError):
        stream.advance()
    for _ in stream:
        stream.advance()
        with pytest.raises(RuntimeError):
            stream.advance()
    with pytest.raises(RuntimeError):
        next(iter(stream))


def test_value_that_is_not_finite_is_named(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    stream = LayerStream(ModelFolder(tmp_path / "m"), windows(), progress=False)
    with pytest.raises(UserError, match="layer 1 gives a value that is not finite for window 0"):
        for index, layer, _ in stream:
            if index == 1:
                layer.mlp.up_proj.weight[0, 0] = float("nan")


def test_token_of_another_vocabulary(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    with pytest.raises(UserError, match="token 96 is outside its vocabulary of 96"):
        LayerStream(ModelFolder(tmp_path / "m"), torch.tensor([[3, VOCAB]]))


def test_progress_bar_only_when_asked_for_or_at_a_terminal(tmp_path, capsys):
    write_model(tmp_path / "m", tiny_config("llama"))
    for progress, shown in ((True, True), (False, False), (None, False)):
        list(LayerStream(ModelFolder(tmp_path / "m"), windows(), progress=progress))
        assert ("layers: 100%" in capsys.readouterr().err) == shown
