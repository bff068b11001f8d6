# SPDX-License-Identifier: Apache-2.0
"""A model folder on disk: configuration, tokenizer, and tensors read one at a time."""

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from comet.errors import UserError
from comet.models.families import Family, family_named

INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"


class ModelFolder:
    """A Hugging Face model folder of a supported family.

    Opening reads the configuration only; tensors are read when they are asked for, and no file
    stays open or mapped in between.

    Args:
        path: the folder.

    Raises:
        UserError: the folder or its config.json is missing or broken, or the family is not
            supported.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise UserError(f"{self.path} has no config.json; it is not a model folder")
        raw = _read_json(self.path / "config.json")
        self.family: Family = family_named(raw.get("model_type"), str(self.path / "config.json"))
        try:
            self.config = AutoConfig.from_pretrained(self.path, local_files_only=True)
        except Exception as error:
            # Which type reports a wrong value differs between versions of the library.
            raise UserError(f"{self.path / 'config.json'} cannot be used: {error}") from error

    @cached_property
    def description(self) -> dict:
        """What ``prepare_model`` wrote about the folder: id, label, family, source, sha256."""
        path = self.path / "comet.json"
        return _read_json(path) if path.is_file() else {}

    @property
    def label(self) -> str:
        """How tables and figures name the model; the folder's name where nothing is declared."""
        return self.description.get("label", self.path.name)

    @cached_property
    def _files(self) -> dict[str, tuple[Path, str]]:
        """Tensor name of the causal language model -> (file, name in that file)."""
        if (self.path / INDEX).is_file():
            weight_map = _read_json(self.path / INDEX).get("weight_map", {})
            files = {name: self.path / file for name, file in weight_map.items()}
        elif (single := self.path / "model.safetensors").is_file():
            with _open(single) as stream:
                files = dict.fromkeys(stream.keys(), single)
        else:
            raise UserError(
                f"{self.path} has neither model.safetensors nor {INDEX}; convert the weights to "
                "safetensors first"
            )
        if lost := next((file for file in files.values() if not file.is_file()), None):
            raise UserError(f"{lost} is missing though {INDEX} names it; fetch the model again")
        return {_full_name(name): (file, name) for name, file in files.items()}

    def tensor_names(self) -> list[str]:
        """Names of the stored tensors, sorted; a tied head is stored once, as the embedding."""
        return sorted(self._files)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, in the dtype it is stored in."""
        return self.tensors([name])[name]

    def tensors(
        self,
        names: Iterable[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> dict[str, torch.Tensor]:
        """Several tensors, each shard opened once.

        Args:
            names: tensor names; those of a tied head are read from the embedding.
            device, dtype: where and as what to return them; default the stored dtype.

        Returns:
            name -> tensor. The memory belongs to the caller: nothing refers to the mapped file.

        Raises:
            UserError: a tensor is not in the folder, or a file is broken.
        """
        by_file: dict[Path, list[tuple[str, str]]] = {}
        for name in names:
            file, stored = self._locate(name)
            by_file.setdefault(file, []).append((name, stored))
        found = {}
        for file, pairs in by_file.items():
            with _open(file) as stream:
                for name, stored in pairs:
                    # A copy, so that closing the file gives its mapped pages back.
                    found[name] = stream.get_tensor(stored).to(device, dtype, copy=True)
        return found

    def _locate(self, name: str) -> tuple[Path, str]:
        if name not in self._files and name == HEAD and self.config.tie_word_embeddings:
            name = f"{self.family.before_layers[0]}.weight"
        if name not in self._files:
            raise UserError(f"{self.path} has no tensor {name}; fetch the model again")
        return self._files[name]

    def meta_model(self) -> torch.nn.Module:
        """The causal language model of this configuration on the meta device, in eval mode."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config).eval()

    def check_complete(self) -> None:
        """Compare the names and shapes of the stored tensors with what the model needs.

        Raises:
            UserError: a tensor is missing, unexpected or of another shape.
        """
        wanted = {name: list(value.shape) for name, value in self.meta_model().state_dict().items()}
        if self.config.tie_word_embeddings and HEAD not in self._files:
            wanted.pop(HEAD, None)
        stored = set(self._files)
        for problem, names in (
            ("misses the tensor", sorted(set(wanted) - stored)),
            ("has the unexpected tensor", sorted(stored - set(wanted))),
        ):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise UserError(
                    f"{self.path} {problem} {names[0]}{more}; its weights do not fit its "
                    "config.json"
                )
        for file in sorted({file for file, _ in self._files.values()}):
            with _open(file) as stream:
                for name in (name for name, place in self._files.items() if place[0] == file):
                    shape = stream.get_slice(self._files[name][1]).get_shape()
                    if shape != wanted[name]:
                        raise UserError(
                            f"{file}: {name} has shape {shape}, config.json asks for {wanted[name]}"
                        )

    def load(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> torch.nn.Module:
        """The whole model in memory, in eval mode."""
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, local_files_only=True)
        return model.to(device).eval()

    def tokenizer(self):
        """The folder's tokenizer.

        A ``tokenizer.json`` is taken as it stands: the class that goes with a family would rebuild
        the splitting of words and digits its own way, and recast weights keep their tokenizer.

        Raises:
            UserError: the folder has none.
        """
        whole = (self.path / "tokenizer.json").is_file()
        loader = PreTrainedTokenizerFast if whole else AutoTokenizer
        try:
            return loader.from_pretrained(self.path, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{self.path} has no tokenizer that can be read; copy the model's tokenizer files "
                "into it"
            ) from error


def _full_name(name: str) -> str:
    """Checkpoints of the bare decoder leave out the prefix of the causal language model."""
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; fetch the model again") from error


def _open(path: Path):
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}; fetch the model again") from error
