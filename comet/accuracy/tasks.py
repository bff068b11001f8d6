# SPDX-License-Identifier: Apache-2.0
"""Zero-shot accuracy of one row by lm-eval's own API: its prompts, metrics and standard errors."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from comet.accuracy.evaluate import build_model
from comet.accuracy.rows import row_named
from comet.data.stock_tasks import harness_installed, load_task
from comet.data.tasks import TASKS, about_rows
from comet.errors import UserError
from comet.files import read_json_lines
from comet.measurements import Measurement, environment, provenance, skipped
from comet.models.folder import ModelFolder
from comet.speed.gpu_environment import device_environment

HARNESS_PACKAGES = ("torch", "transformers", "numpy", "lm_eval", "datasets")
# Of all rows of a batch, each taken as long as the longest: a quarter as many tokens, whose logits
# lm-eval holds three times, are some 10 GB at the 49,152 words of SmolLM2.
CHARACTERS_AT_ONCE = 65536
NO_HARNESS = "zero-shot tasks need the package lm_eval; install requirements.txt"


@dataclass(frozen=True)
class TaskEvaluation:
    """What to evaluate and on which task.

    Attributes:
        backend: row name (``comet.accuracy.rows``).
        model: model id for the record.
        model_folder: folder of the 16-bit model.
        task: one of ``comet.data.tasks.TASKS``.
        rows: the task's prepared rows.
        limit: how many rows from the first; None for all.
        batch_size: sequences at once, fewer where a task has long ones (``sequences_at_once``);
            fixed, because another one may round differently.
        checkpoint: quantized model, for rows that need one.
        device: torch device.
        dtype: type of the 16-bit parts.
    """

    backend: str
    model: str
    model_folder: Path
    task: str
    rows: Path
    limit: int | None = None
    batch_size: int = 8
    checkpoint: Path | None = None
    device: str = "cpu"
    dtype: str = "float32"


@dataclass(frozen=True)
class TaskScore:
    """What lm-eval says about one task and metric.

    Attributes:
        metric: ``acc`` or ``acc_norm``.
        value: accuracy, a share.
        stderr: lm-eval's standard error of it.
        items: a ``1`` for each right and a ``0`` for each wrong row, in order.
        version: version of lm-eval's task.
    """

    metric: str
    value: float
    stderr: float
    items: str
    version: str


def evaluate_task(evaluation: TaskEvaluation, config: dict, seed: int) -> list[Measurement]:
    """Accuracy of one row on one task; a record for each of the task's metrics.

    The records are skipped ones where lm-eval is not installed.

    Raises:
        UserError: a quantized model is missing.
    """
    row = row_named(evaluation.backend)
    source = provenance(config, seed)
    case = {
        "model": evaluation.model,
        "dataset": evaluation.task,
        "split": TASKS[evaluation.task].split,
        "context": None,
        "windows": None,
        "task": evaluation.task,
        "limit": evaluation.limit,
    }
    if not harness_installed():
        named = {"environment": environment(), "provenance": source}
        return [
            skipped("accuracy", case, metric, "1", evaluation.backend, NO_HARNESS, **named)
            for metric in TASKS[evaluation.task].metrics
        ]
    torch.manual_seed(seed)
    about = about_rows(evaluation.rows)
    model = build_model(evaluation, row)
    tokenizer = ModelFolder(evaluation.model_folder).tokenizer()
    batch_size = sequences_at_once(evaluation.rows, evaluation.batch_size)
    scores = score_task(
        model, tokenizer, evaluation.task, evaluation.rows, evaluation.limit, batch_size
    )
    return [
        Measurement(
            kind="accuracy",
            case=case,
            metric=score.metric,
            unit="1",
            backend=evaluation.backend,
            samples=[score.value],
            method={
                "what": "share of rows answered right, zero-shot, lm-eval's prompt and metric",
                "path": "fake quantization",
                "arithmetic": evaluation.dtype,
                "row": row.label,
                "stderr": score.stderr,
                "items": score.items,
                "batch_size": batch_size,
                "task_version": score.version,
                "rows": about,
            },
            environment=device_environment(evaluation.device, HARNESS_PACKAGES),
            provenance=source,
        )
        for score in scores
    ]


def sequences_at_once(rows: Path, most: int) -> int:
    """At most ``most``, and so few that a batch of the longest rows stays small in memory."""
    longest = max((_characters(row) for row in read_json_lines(rows)), default=0)
    return max(1, min(most, CHARACTERS_AT_ONCE // max(1, longest)))


def _characters(part: object) -> int:
    """Characters of a row: its texts together, of a list of choices the longest."""
    if isinstance(part, dict):
        return sum(map(_characters, part.values()))
    if isinstance(part, list):
        return max(map(_characters, part), default=0)
    return len(part) if isinstance(part, str) else 0


def score_task(
    model: torch.nn.Module, tokenizer, name: str, rows: Path, limit: int | None, batch_size: int
) -> list[TaskScore]:
    """Score a loaded model on one task.

    Args:
        model: causal language model.
        tokenizer: its Hugging Face tokenizer.
        name: one of ``comet.data.tasks.TASKS``.
        rows: the prepared rows.
        limit: how many rows from the first; None for all.
        batch_size: sequences at once.

    Raises:
        UserError: the tokenizer has no token to start a text with.
    """
    from lm_eval import evaluate
    from lm_eval.models.huggingface import HFLM

    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise UserError(
            "lm-eval needs a tokenizer with a beginning- or end-of-text token; add one to the "
            "model's tokenizer_config.json"
        )
    # lm-eval hands this to transformers' registry of quantizers, which does not know fmpq.
    vars(model.config).pop("quantization_config", None)
    task = load_task(name, TASKS[name].folder, TASKS[name].split, rows)
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    loaded = {"tasks": {name: task}, "groups": {}, "group_map": {}}
    # lm-eval bootstraps in forked processes, which can wait forever for a lock of a thread of ours.
    os.environ["DISABLE_MULTIPROC"] = "1"
    # Bootstraps only LAMBADA's perplexity, which is not reported; 0 would drop the other errors.
    results = evaluate(wrapped, loaded, limit=limit, bootstrap_iters=2)
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    found = results["results"][name]
    return [
        TaskScore(
            metric,
            float(found[f"{metric},none"]),
            float(found[f"{metric}_stderr,none"]),
            "".join(str(int(sample[metric])) for sample in samples),
            str(task.VERSION),
        )
        for metric in TASKS[name].metrics
    ]
