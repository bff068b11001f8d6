# SPDX-License-Identifier: Apache-2.0
"""Prepared texts, read back."""

from pathlib import Path

from comet.errors import UserError
from comet.files import read_json_lines


def read_passages(path: Path | str) -> list[dict]:
    """Passages {"title", "text"} of a prepared text.

    Args:
        path: ``calibration.jsonl`` or ``test.jsonl`` as ``prepare_text`` wrote it.

    Raises:
        UserError: the file is missing, broken, or this part of the text is empty.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; prepare the text first")
    passages = read_json_lines(path)
    if not passages:
        raise UserError(
            f"{path} is empty: text {path.parent.name!r} has no {path.stem} part; name another "
            "text in the config"
        )
    for number, passage in enumerate(passages, 1):
        if not isinstance(passage, dict) or not isinstance(passage.get("text"), str):
            raise UserError(f"{path}:{number} is not an object with a text")
    return passages


def joined_text(path: Path | str, joiner: str = "\n\n") -> str:
    """All passages of a prepared text as one string, ``joiner`` between two of them."""
    return joiner.join(passage["text"] for passage in read_passages(path))
