# SPDX-License-Identifier: Apache-2.0
"""What the accuracy targets evaluate: models by texts and tasks by rows."""

import itertools

from comet.data.tasks import TASKS
from comet.measurements import case_id

FMPQ_CHECKPOINTS = ("natural", "fmpq", "fmpq-plus")
CHECKPOINT_OF_ROW = {
    "w16a16": None,
    "fmpq-w4a16": "natural",
    "fmpq-w4a4": "natural",
    "fmpq-w4ax": "fmpq",
    "fmpq-token-block-w4ax": "fmpq",
    "fmpq-plus-w4ax": "fmpq-plus",
}


def accuracy_cases(config: dict) -> dict[str, dict]:
    """What the target ``accuracy`` evaluates.

    Returns:
        Case id -> ``case`` (the record's), ``model``, ``text`` or ``task``, ``row`` and
        ``checkpoint``, the quantized model that the row reads or None.
    """
    accuracy, cases = config["accuracy"], {}
    for model in accuracy["models"]:
        rows = accuracy["rows_of"].get(model, accuracy["rows"])
        tasks = accuracy["tasks"] if model in accuracy.get("task_models", [model]) else []
        task_rows = [row for row in rows if row in accuracy.get("task_rows", rows)]
        scored = itertools.product(accuracy["texts"], [None], rows)
        for text, task, row in (*scored, *itertools.product([None], tasks, task_rows)):
            case = {
                "model": model,
                "dataset": text or task,
                "split": TASKS[task].split if task else "test",
                "context": None if task else accuracy["context"],
                "windows": None if task else accuracy["windows"],
                "task": task,
                "limit": accuracy["task_limit"] if task else None,
            }
            cases[case_id("accuracy", case, row)] = {
                "case": case,
                "model": model,
                "text": text,
                "task": task,
                "row": row,
                "checkpoint": checkpoint_of(row),
            }
    return cases


def checkpoint_of(row: str) -> str | None:
    """Quantized model of a row: an FMPQ checkpoint, the method of that name, or None.

    Rows that differ only in their K and V share it.
    """
    weights = row.removesuffix("kv4").removesuffix("-")
    return CHECKPOINT_OF_ROW.get(weights, weights)


def fmpq_section(config: dict, checkpoint: str) -> dict:
    """Options of an FMPQ checkpoint; those of ``fmpq-plus`` lie over the ones of ``fmpq``."""
    over = config["fmpq_plus"] if checkpoint == "fmpq-plus" else {}
    return {**config["fmpq"], **over}
