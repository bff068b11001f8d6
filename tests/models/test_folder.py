# SPDX-License-Identifier: Apache-2.0
"""Model folders: tensors one at a time, families, and one clear line for what is wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_config, write_model

from comet.errors import UserError
from comet.models.families import FAMILIES
from comet.models.folder import ModelFolder


def test_tensors_equal_the_model(tiny, family):
    folder = ModelFolder(tiny)
    assert folder.family is FAMILIES[family]
    state = folder.load().state_dict()
    for name in folder.tensor_names():
        assert torch.equal(folder.tensor(name), state[name])
    folder.check_complete()


def test_family_names_every_linear_of_a_layer(tiny):
    folder = ModelFolder(tiny)
    layer = folder.family.layers_of(folder.meta_model())[0]
    linears = {n for n, module in layer.named_modules() if isinstance(module, torch.nn.Linear)}
    assert set(folder.family.linears) == linears
    for group in folder.family.inputs:
        assert group.norm is None or layer.get_submodule(group.norm).weight is not None
        widths = {layer.get_submodule(linear).in_features for linear in group.linears}
        assert len(widths) == 1
        assert all(folder.family.group_of(linear) is group for linear in group.linears)


def test_inputs_of_a_group_are_one_tensor(tiny):
    folder = ModelFolder(tiny)
    model = folder.load()
    layer = folder.family.layers_of(model)[0]
    seen = {}
    for name in (*folder.family.linears, *(g.norm for g in folder.family.inputs if g.norm)):
        layer.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: seen.update({name: (inputs[0], output)})
        )
    with torch.no_grad():
        model(torch.arange(3, 10)[None])
    for group in folder.family.inputs:
        first = seen[group.linears[0]][0]
        assert all(seen[linear][0] is first for linear in group.linears)
        if group.norm:
            assert torch.equal(seen[group.norm][1].flatten(), first.flatten())


def test_mlp_permutation_is_absorbed_by_the_named_linears(tiny):
    folder = ModelFolder(tiny)
    model, ids = folder.load(), torch.arange(3, 10)[None]
    layer = folder.family.layers_of(model)[1]
    permutation = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(ids).logits
        for name in folder.family.absorbs:
            producer = layer.get_submodule(name)
            producer.weight.copy_(producer.weight[permutation])
            if producer.bias is not None:
                producer.bias.copy_(producer.bias[permutation])
        consumer = layer.get_submodule(folder.family.inputs[3].linears[0])
        consumer.weight.copy_(consumer.weight[:, permutation])
        torch.testing.assert_close(model(ids).logits, before)


def test_tied_head_is_read_from_the_embedding(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama", tie_word_embeddings=True))
    folder = ModelFolder(tmp_path / "m")
    assert "lm_head.weight" not in folder.tensor_names()
    head = folder.tensor("lm_head.weight")
    assert torch.equal(head, folder.tensor("model.embed_tokens.weight"))
    folder.check_complete()


def test_checkpoint_of_the_bare_decoder(tmp_path):
    write_model(tmp_path / "m", tiny_config("opt"))
    file = tmp_path / "m" / "model.safetensors"
    weights = {name.removeprefix("model."): value for name, value in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    folder = ModelFolder(tmp_path / "m")
    folder.check_complete()
    assert folder.tensor("model.decoder.layers.0.fc1.weight").shape == (48, 32)


def test_tensors_convert_and_own_their_memory(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    folder = ModelFolder(tmp_path / "m")
    name = "model.norm.weight"
    changed = folder.tensor(name).zero_()
    assert changed.abs().sum() == 0
    assert folder.tensor(name).abs().sum() > 0
    assert folder.tensors([name], dtype=torch.bfloat16)[name].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(model_type="gpt2"), "unsupported model family 'gpt2'; supported are"),
        (lambda c: c.pop("model_type"), "unsupported model family None"),
        (
            lambda c: c.update(num_attention_heads=5),
            "config.json cannot be used",
        ),
    ],
)
def test_unusable_config(tmp_path, change, message):
    path = write_model(tmp_path / "m", tiny_config("llama")) / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        ModelFolder(tmp_path / "m").check_complete()


def test_not_a_model_folder(tmp_path):
    with pytest.raises(UserError, match="has no config.json"):
        ModelFolder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json is not JSON"):
        ModelFolder(tmp_path)


def test_weights_that_do_not_fit(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"))
    file = tmp_path / "m" / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"

    def check_with(changed: dict, message: str) -> None:
        save_file(changed, file, metadata={"format": "pt"})
        with pytest.raises(UserError, match=message):
            ModelFolder(tmp_path / "m").check_complete()

    check_with({k: v for k, v in weights.items() if k != name}, f"misses the tensor {name}")
    check_with(weights | {"model.extra": torch.zeros(1)}, "unexpected tensor model.extra")
    check_with(weights | {name: torch.zeros(4, 4)}, r"has shape \[4, 4\], config.json asks for")
    file.write_bytes(b"not a safetensors file")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        ModelFolder(tmp_path / "m").check_complete()
    file.unlink()
    with pytest.raises(UserError, match="neither model.safetensors nor"):
        ModelFolder(tmp_path / "m").check_complete()


def test_missing_shard_and_missing_tokenizer(tmp_path):
    write_model(tmp_path / "m", tiny_config("llama"), max_shard_size="20KB")
    folder = ModelFolder(tmp_path / "m")
    folder.check_complete()
    with pytest.raises(UserError, match="no tokenizer"):
        folder.tokenizer()
    sorted((tmp_path / "m").glob("*.safetensors"))[1].unlink()
    with pytest.raises(UserError, match="is missing though"):
        ModelFolder(tmp_path / "m").tensor_names()
