# SPDX-License-Identifier: Apache-2.0
"""FMPQ checkpoints: safetensors with packed INT4 in a Hugging Face folder, facts in config.json.

Each quantized linear ``P`` is stored as ``P.qweight``, ``P.group_scale``, ``P.group_zero``,
``P.channel_scale`` and ``P.perm`` (see ``comet.formats.weights``), its bias as ``P.bias``. What is
needed as plain numbers before tensors are read (block counts, scale kinds) stands in config.json
under ``quantization_config``.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from comet.errors import UserError
from comet.files import atomic_path, write_json
from comet.formats.blocks import BlockLayout
from comet.formats.weights import PackedWeight

FORMAT_VERSION = 1
INDEX = "model.safetensors.index.json"


def packed_tensors(name: str, weight: PackedWeight) -> dict[str, torch.Tensor]:
    """Tensors of one quantized linear layer under their checkpoint names."""
    return {
        f"{name}.qweight": weight.codes,
        f"{name}.group_scale": weight.group_scale,
        f"{name}.group_zero": weight.group_zero,
        f"{name}.channel_scale": weight.channel_scale,
        f"{name}.perm": weight.permutation,
    }


def packed_facts(weight: PackedWeight) -> dict:
    """What config.json says of one quantized linear layer."""
    return {
        "channels": weight.layout.channels,
        "int4_blocks": weight.layout.int4_blocks,
        "int8_blocks": weight.layout.int8_blocks,
        "scale_kind": weight.scale_kind,
        "hadamard": weight.hadamard,
    }


class CheckpointWriter:
    """Writes a checkpoint shard by shard into a folder.

    Args:
        folder: existing folder; the caller makes it appear atomically.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.weight_map: dict[str, str] = {}
        self.layers: dict[str, dict] = {}
        self.bytes = 0

    def add_shard(
        self,
        shard: str,
        tensors: dict[str, torch.Tensor],
        packed: dict[str, PackedWeight] | None = None,
    ) -> None:
        """Write plain tensors and quantized layers as one safetensors file."""
        everything = dict(tensors)
        for name, weight in (packed or {}).items():
            everything.update(packed_tensors(name, weight))
            self.layers[name] = packed_facts(weight)
        seen = set()
        for name, tensor in everything.items():
            tensor = tensor.detach().cpu().contiguous()
            # safetensors refuses tensors that share memory (q, k and v share one permutation).
            memory = tensor.untyped_storage().data_ptr()
            everything[name] = tensor.clone() if memory in seen else tensor
            seen.add(memory)
        with atomic_path(self.folder / shard) as temporary:
            save_file(everything, temporary, metadata={"format": "pt"})
        self.weight_map.update(dict.fromkeys(everything, shard))
        self.bytes += sum(t.nbytes for t in everything.values())

    def finish(self, model_config: dict, options: dict, extra: dict) -> None:
        """Write the index and config.json (the model's own config plus ``quantization_config``)."""
        write_json(
            self.folder / INDEX,
            {"metadata": {"total_size": self.bytes}, "weight_map": self.weight_map},
        )
        quantization = {
            "quant_method": "fmpq",
            "version": FORMAT_VERSION,
            "options": options,
            "layers": self.layers,
            **extra,
        }
        write_json(
            self.folder / "config.json", {**model_config, "quantization_config": quantization}
        )


class Checkpoint:
    """An FMPQ checkpoint on disk, read lazily.

    Raises:
        UserError: the folder is not an FMPQ checkpoint, or of a newer format.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        config_path = self.folder / "config.json"
        if not config_path.is_file():
            raise UserError(f"{folder} has no config.json; give the folder of an FMPQ checkpoint")
        self.config = json.loads(config_path.read_text(encoding="utf-8"))
        facts = self.config.get("quantization_config", {})
        if facts.get("quant_method") != "fmpq":
            raise UserError(f"{config_path} does not describe an FMPQ checkpoint (quant_method)")
        if facts["version"] > FORMAT_VERSION:
            raise UserError(
                f"{config_path} has format version {facts['version']}, this comet reads up to "
                f"{FORMAT_VERSION}; update comet"
            )
        self.facts = facts
        self.options: dict = facts["options"]
        self.layers: dict[str, dict] = facts["layers"]
        index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
        self.weight_map: dict[str, str] = index["weight_map"]

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor by its checkpoint name."""
        with safe_open(self.folder / self.weight_map[name], framework="pt") as shard:
            return shard.get_tensor(name)

    def plain_names(self) -> list[str]:
        """Names of the tensors that belong to no quantized weight (norms, embeddings, biases)."""
        packed = {n for layer in self.layers for n in _packed_names(layer)}
        return [name for name in self.weight_map if name not in packed]

    def packed_weight(self, name: str) -> PackedWeight:
        """The quantized weight of one linear layer."""
        facts = self.layers[name]
        codes, group_scale, group_zero, channel_scale, permutation = (
            self.tensor(key) for key in _packed_names(name)
        )
        layout = BlockLayout(facts["channels"], facts["int4_blocks"], facts["int8_blocks"])
        weight = PackedWeight(
            layout,
            permutation,
            codes,
            group_scale,
            group_zero,
            channel_scale,
            facts["scale_kind"],
            facts["hadamard"],
        )
        weight.check()
        return weight


def _packed_names(layer: str) -> list[str]:
    fields = ("qweight", "group_scale", "group_zero", "channel_scale", "perm")
    return [f"{layer}.{field}" for field in fields]
