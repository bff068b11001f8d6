# SPDX-License-Identifier: Apache-2.0
"""Checks that the tables of models and of texts in the config share."""

import re

from comet.errors import UserError

WHEEL_KINDS = ("gguf-wheel", "arrow-wheel")


def check_entry(
    where: str,
    config: dict,
    required: set[str],
    optional: set[str],
    sources: dict[str, set[str]],
    source_options: dict[str, set[str]] | None = None,
) -> None:
    """Check the keys of one declared model or text.

    Args:
        where: how an error names the entry, for instance ``models: smollm2``.
        config: the entry.
        required, optional: its keys.
        sources: the keys that each source kind needs.
        source_options: the keys that a source kind may have besides.

    Raises:
        UserError: a key is unknown or missing, a hash or a revision is not one.
    """
    _check_keys(where, config, required, optional)
    source = config["source"]
    kind = source.get("kind") if isinstance(source, dict) else None
    if kind not in sources:
        raise UserError(f"{where}: source kind {kind!r} is not one of {', '.join(sources)}")
    allowed = (source_options or {}).get(kind, set())
    _check_keys(f"{where}: source", source, sources[kind] | {"kind"}, allowed)
    sha256 = config.get("sha256")
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", str(sha256)):
        raise UserError(f"{where}: sha256 {sha256!r} is not 64 lower-case hexadecimal digits")
    if kind in WHEEL_KINDS and sha256 is None:
        raise UserError(f"{where}: a source of kind {kind} needs the sha256 of its wheel")
    if kind == "hub" and not re.fullmatch("[0-9a-f]{40}", str(source["revision"])):
        raise UserError(
            f"{where}: revision {source['revision']!r} is not a commit of 40 hexadecimal digits; a "
            "branch name would not pin the files"
        )


def _check_keys(where: str, config: dict, required: set[str], optional: set[str]) -> None:
    if not isinstance(config, dict):
        raise UserError(f"{where}: expected a table of {', '.join(sorted(required))}")
    if unknown := sorted(set(config) - required - optional):
        known = ", ".join(sorted(required | optional))
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {known}")
    if missing := sorted(required - set(config)):
        raise UserError(f"{where}: missing key {missing[0]!r}")
