# SPDX-License-Identifier: Apache-2.0
"""Random models: true shapes, one shard a layer, the same bytes for the same seed."""

import shutil
from collections import namedtuple

import pytest
import torch

from comet.errors import UserError
from comet.models import prepare, random_weights
from comet.models.entries import ModelEntry
from comet.models.folder import ModelFolder
from comet.models.shapes import ModelShapes, shape_table, shapes_from_config

TINY = ModelShapes(
    model="tiny",
    hidden=64,
    intermediate=96,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=300,
    linears={"qkv": (128, 64), "o": (64, 64), "gate_up": (192, 64), "down": (64, 96)},
    printed={},
)
Usage = namedtuple("Usage", "total used free")


def entry(shape="LLaMA-2-7B", family="llama", **source) -> ModelEntry:
    config = {
        "label": "random weights",
        "family": family,
        "source": {"kind": "random", "shape": shape, **source},
    }
    return ModelEntry.from_config("r", config)


def write(path, family="llama", seed=0):
    path.mkdir()
    random_weights.write_random_model(path, TINY, family, seed)
    return ModelFolder(path)


@pytest.mark.parametrize("family", random_weights.CONFIGS)
def test_folder_loads_with_the_shapes_asked_for(tmp_path, family):
    folder = write(tmp_path / "m", family)
    folder.check_complete()
    assert folder.family.name == family
    found = shapes_from_config(folder.config, "tiny")
    assert (found.linears, found.layers, found.vocab) == (TINY.linears, 3, 300)
    assert folder.tensor("model.embed_tokens.weight").dtype == torch.float16
    with torch.no_grad():
        logits = folder.load()(torch.arange(20)[None]).logits
    assert torch.isfinite(logits).all() and logits.std() > 0


def test_one_shard_a_layer_and_one_a_tensor_outside(tmp_path):
    write(tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").glob("*.safetensors")) == [
        "layer-00000.safetensors",
        "layer-00001.safetensors",
        "layer-00002.safetensors",
        "lm_head.safetensors",
        "model.embed_tokens.safetensors",
        "model.norm.safetensors",
    ]


def test_memory_holds_one_shard_at_a_time(tmp_path, monkeypatch):
    largest = []
    original = random_weights.save_file

    def watched(tensors, *arguments, **options):
        largest.append(sum(tensor.nbytes for tensor in tensors.values()))
        original(tensors, *arguments, **options)

    monkeypatch.setattr(random_weights, "save_file", watched)
    write(tmp_path / "m")
    layer = 2 * (TINY.linear_weights // 3 + 2 * TINY.hidden)
    assert max(largest) == layer and len(largest) == 6


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write(tmp_path / name, seed=seed)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    weights = "layer-00001.safetensors"
    assert (tmp_path / "a" / weights).read_bytes() != (tmp_path / "c" / weights).read_bytes()


def test_every_text_has_tokens_and_comes_back(tmp_path):
    tokenizer = write(tmp_path / "m").tokenizer()
    text = "Sunday, 5 % \u00e9t\u00e9 \u4e2d\n\n\U0001f680"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert len(ids) == len(text.encode()) and max(ids) < 256
    assert tokenizer.decode(ids) == text


def test_prepared_as_declared(tmp_path, monkeypatch):
    monkeypatch.setattr(random_weights, "shapes_of", lambda name: TINY)
    prepare.prepare_model(entry(layers=2, seed=3), {}, tmp_path / "r", tmp_path)
    folder = ModelFolder(tmp_path / "r")
    assert folder.config.num_hidden_layers == 2
    assert folder.label == "random weights"
    assert folder.description["source"] == {
        "kind": "random",
        "shape": "LLaMA-2-7B",
        "layers": 2,
        "seed": 3,
    }


def test_space_is_checked_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2e10, 1e10, 1e10))
    with pytest.raises(UserError, match=r"LLaMA-2-7B need 13\.5 GB in .*, where 10\.0 GB are free"):
        prepare.prepare_model(entry(), {}, tmp_path / "deep" / "r", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"shape": "OPT-175B", "family": "opt"}, "random weights are made for llama, mistral"),
        ({"shape": "Mistral-7B"}, "Mistral-7B is of family mistral; correct `family`"),
        ({"shape": "LLaMA-9"}, "no shapes of a model 'LLaMA-9'"),
        ({"layers": 33}, "LLaMA-2-7B has 32 layers; 33 were asked for"),
    ],
)
def test_what_cannot_be_made_is_told(tmp_path, source, message):
    with pytest.raises(UserError, match=message):
        prepare.prepare_model(entry(**source), {}, tmp_path / "r", tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_other_shape_of_the_table_has_a_family():
    families = {
        name: random_weights.shape_family(name) for name in shape_table() if name != "OPT-175B"
    }
    assert set(families.values()) == set(random_weights.CONFIGS)
