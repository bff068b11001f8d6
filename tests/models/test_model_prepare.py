# SPDX-License-Identifier: Apache-2.0
"""Declared models become complete folders, or one clear line and nothing on disk."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_gguf import write_gguf, write_wheel
from tiny_models import tiny_config, write_model
from transformers import AutoModelForCausalLM

from comet.errors import UserError
from comet.files import sha256_of
from comet.models import prepare
from comet.models.entries import ModelEntry
from comet.models.folder import ModelFolder
from comet.models.prepare import prepare_model

IDS = torch.arange(3, 20)[None]


def declared(id: str, family: str, sha256: str | None = None, **source) -> ModelEntry:
    config = {"family": family, "label": f"label of {id}", "source": source}
    return ModelEntry.from_config(id, config | ({"sha256": sha256} if sha256 else {}))


@pytest.fixture
def base(tmp_path):
    """A tiny LLaMA model: (folder that holds its wheel, entry, the model itself)."""
    config = tiny_config("llama", tie_word_embeddings=True)
    folder = ModelFolder(write_model(tmp_path / "original", config))
    write_gguf(tmp_path / "tiny.gguf", folder.load())
    wheel = write_wheel(
        tmp_path / "downloads" / "tiny_model-0.1-py3-none-any.whl",
        {"tiny_model/tiny.gguf": tmp_path / "tiny.gguf"},
    )
    entry = declared(
        "base",
        "llama",
        sha256_of(wheel),
        kind="gguf-wheel",
        package="tiny-model",
        version="0.1",
        file="tiny_model/tiny.gguf",
    )
    return wheel.parent, entry, folder.load()


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return ModelFolder(folder).load()(IDS).logits


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_gguf_in_a_wheel(tmp_path, base):
    downloads, entry, original = base
    prepare_model(entry, {"base": entry}, tmp_path / "out" / "base", downloads)
    folder = ModelFolder(tmp_path / "out" / "base")
    with torch.no_grad():
        torch.testing.assert_close(logits(folder.path), original(IDS).logits)
    assert folder.label == "label of base"
    assert folder.description["sha256"] == entry.sha256
    assert folder.description["source"] == entry.source
    assert "quantization_config" not in json.loads((folder.path / "config.json").read_text())
    assert {folder.tensor(name).dtype for name in folder.tensor_names()} == {torch.float32}
    assert folder.tokenizer()("ABab").input_ids == [35, 36, 95]
    assert leftovers(tmp_path / "out") == ["base"]


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
@pytest.mark.parametrize("base_is_there", [True, False])
def test_recast_computes_the_same(tmp_path, base, family, base_is_there):
    downloads, entry, original = base
    other = declared("other", family, kind="recast", model="base")
    entries = {"base": entry, "other": other}
    if base_is_there:
        prepare_model(entry, entries, tmp_path / "out" / "base", downloads)
    prepare_model(other, entries, tmp_path / "out" / "other", downloads)
    expected = {"other", "base"} if base_is_there else {"other"}
    assert set(leftovers(tmp_path / "out")) == expected
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out" / "other", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.model_type == family
    with torch.no_grad():
        assert torch.equal(model.eval()(IDS).logits, original(IDS).logits)
    if family == "qwen2":
        bias = model.model.layers[0].self_attn.k_proj.bias
        assert torch.equal(bias, torch.zeros(16))
    assert ModelFolder(tmp_path / "out" / "other").tokenizer()("AB").input_ids == [35, 36]


def test_recast_that_cannot_be_exact(tmp_path):
    write_model(tmp_path / "qwen3", tiny_config("qwen3"))
    write_model(tmp_path / "biased", tiny_config("llama", attention_bias=True))
    write_model(tmp_path / "wide", tiny_config("llama", head_dim=16))
    entries = {
        "qwen3": declared("qwen3", "qwen3", kind="folder", path=str(tmp_path / "qwen3")),
        "biased": declared("biased", "llama", kind="folder", path=str(tmp_path / "biased")),
        "wide": declared("wide", "llama", kind="folder", path=str(tmp_path / "wide")),
        "chain": declared("chain", "mistral", kind="recast", model="biased"),
    }
    for model, family, message in (
        ("qwen3", "mistral", "qwen3 cannot be recast as mistral"),
        ("biased", "mistral", "has biases"),
        ("wide", "qwen2", "heads of 16"),
        ("wide", "opt", "cannot be recast as opt"),
        ("chain", "qwen2", "'chain' is not a declared model with weights of its own"),
        ("lost", "qwen2", "'lost' is not a declared model"),
    ):
        entry = declared("new", family, kind="recast", model=model)
        with pytest.raises(UserError, match=message):
            prepare_model(entry, entries | {"new": entry}, tmp_path / "out" / "new", tmp_path)
        assert leftovers(tmp_path / "out") == []


def test_local_folder_is_linked(tmp_path):
    source = write_model(tmp_path / "opt", tiny_config("opt"))
    entry = declared("local", "opt", kind="folder", path=str(source))
    prepare_model(entry, {}, tmp_path / "out", tmp_path)
    assert (tmp_path / "out" / "model.safetensors").resolve() == source / "model.safetensors"
    assert torch.equal(logits(tmp_path / "out"), logits(source))
    assert ModelFolder(tmp_path / "out").label == "label of local"
    assert not (source / "comet.json").exists()


def test_bad_local_folders(tmp_path):
    def refused(family: str, path: Path, message: str) -> None:
        entry = declared("local", family, kind="folder", path=str(path))
        with pytest.raises(UserError, match=message) as caught:
            prepare_model(entry, {}, tmp_path / "out", tmp_path)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    refused("llama", tmp_path / "nowhere", "no folder .*nowhere; correct `path`")
    (tmp_path / "empty").mkdir()
    refused("llama", tmp_path / "empty", "empty has no config.json")
    llama = write_model(tmp_path / "llama", tiny_config("llama"))
    refused("qwen2", llama, "declared as qwen2, but its config.json says llama")
    (llama / "model.safetensors").unlink()
    refused("llama", llama, "llama has neither model.safetensors nor")


def test_hub_snapshot(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    source = write_model(tmp_path / "cache", tiny_config("llama"))
    asked = {}

    def snapshot_download(repo, revision, allow_patterns):
        asked.update(repo=repo, revision=revision, patterns=allow_patterns)
        return str(source)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    entry = declared("hub", "llama", kind="hub", repo="some/model", revision="0" * 40)
    prepare_model(entry, {}, tmp_path / "out", tmp_path)
    assert torch.equal(logits(tmp_path / "out"), logits(source))
    assert (asked["repo"], asked["revision"]) == ("some/model", "0" * 40)
    assert not any(pattern.endswith(".bin") for pattern in asked["patterns"])

    def offline(*_, **__):
        raise LocalEntryNotFoundError("cannot find the snapshot\nand a second line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="cannot fetch some/model .* connect to a network"):
        prepare_model(entry, {}, tmp_path / "again", tmp_path)
    assert not (tmp_path / "again").exists()


def test_gated_and_unknown_repositories(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    entry = declared("hub", "llama", kind="hub", repo="some/model", revision="0" * 40)
    for kind, message in (
        (GatedRepoError, "is gated; accept its licence"),
        (RepositoryNotFoundError, "no repository some/model"),
    ):

        def refuse(*_, kind=kind, **__):
            # Made without a response, whose type depends on the hub library's version.
            raise kind.__new__(kind)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
        with pytest.raises(UserError, match=message):
            prepare_model(entry, {}, tmp_path / "out", tmp_path)


def test_wheel_without_the_file(tmp_path, base):
    downloads, entry, _ = base
    lost = declared("lost", "llama", entry.sha256, **(entry.source | {"file": "other.gguf"}))
    with pytest.raises(UserError, match="other.gguf.*check `file`"):
        prepare_model(lost, {}, tmp_path / "out" / "lost", downloads)
    assert leftovers(tmp_path / "out") == []


def test_broken_gguf(tmp_path):
    wheel = write_wheel(tmp_path / "bad_model-1-py3-none-any.whl", {"m.gguf": b"not GGUF"})
    source = {"kind": "gguf-wheel", "package": "bad-model", "version": "1", "file": "m.gguf"}
    entry = declared("bad", "llama", sha256_of(wheel), **source)
    with pytest.raises(UserError, match="m.gguf cannot be loaded"):
        prepare_model(entry, {}, tmp_path / "out" / "bad", tmp_path)
    assert leftovers(tmp_path / "out") == []


def test_full_disk_leaves_nothing(tmp_path, base, monkeypatch):
    downloads, entry, _ = base

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare, "save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        prepare_model(entry, {}, tmp_path / "out" / "base", downloads)
    assert leftovers(tmp_path / "out") == []


def test_full_disk_as_the_safetensors_writer_reports_it(tmp_path, base, monkeypatch):
    from safetensors import SafetensorError

    downloads, entry, _ = base

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(prepare, "save_file", full)
    with pytest.raises(UserError, match="cannot write .*No space left on device"):
        prepare_model(entry, {}, tmp_path / "out" / "base", downloads)
    assert leftovers(tmp_path / "out") == []


def test_full_disk_while_unpacking(tmp_path, base, monkeypatch):
    downloads, entry, _ = base

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("zipfile.ZipFile.extract", full)
    with pytest.raises(UserError, match="cannot write .*No space left on device; free space"):
        prepare_model(entry, {}, tmp_path / "out" / "base", downloads)
    assert leftovers(tmp_path / "out") == []


def test_what_a_killed_run_left_is_removed(tmp_path, base):
    downloads, entry, _ = base
    stale = tmp_path / "out" / ".base.source"
    stale.mkdir(parents=True)
    (stale / "half.gguf").write_text("")
    prepare_model(entry, {}, tmp_path / "out" / "base", downloads)
    assert leftovers(tmp_path / "out") == ["base"]


def test_prepared_again_replaces_the_folder(tmp_path):
    source = write_model(tmp_path / "m", tiny_config("llama"))
    entry = declared("m", "llama", kind="folder", path=str(source))
    prepare_model(entry, {}, tmp_path / "out", tmp_path)
    (tmp_path / "out" / "stale").write_text("")
    prepare_model(entry, {}, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out" / "stale").exists()
    shutil.rmtree(tmp_path / "out")
    assert (source / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"familly": "llama"}, "unknown key 'familly'"),
        ({"family": "gpt2"}, "unsupported model family 'gpt2'"),
        ({"source": {"kind": "zip"}}, "source kind 'zip' is not one of gguf-wheel, hub"),
        ({"source": "here"}, "source kind None"),
        ({"source": {"kind": "folder"}}, "missing key 'path'"),
        ({"source": {"kind": "folder", "path": "x", "pth": "y"}}, "unknown key 'pth'"),
        ({"sha256": "abc"}, "sha256 'abc' is not 64"),
        ({"source": {"kind": "hub", "repo": "a/b", "revision": "main"}}, "'main' is not a commit"),
        (
            {"source": {"kind": "gguf-wheel", "package": "a", "version": "1", "file": "b"}},
            "needs the sha256",
        ),
    ],
)
def test_entries_are_checked(change, message):
    config = {"family": "llama", "label": "m", "source": {"kind": "folder", "path": "x"}}
    ModelEntry.from_config("m", config)
    with pytest.raises(UserError, match=message) as caught:
        ModelEntry.from_config("m", config | change)
    assert str(caught.value).startswith("models: m: ")
