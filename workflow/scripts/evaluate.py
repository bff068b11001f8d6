# SPDX-License-Identifier: Apache-2.0
"""Evaluate one row of one model on one text or zero-shot task."""

from pathlib import Path

import torch

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.accuracy.tasks import TaskEvaluation, evaluate_task
from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    case, config = snakemake.params.evaluated, snakemake.config
    checkpoint = Path(snakemake.input.checkpoint) if case["checkpoint"] else None
    if checkpoint and checkpoint.is_file():
        checkpoint = checkpoint.parent
    subject = {
        "backend": case["row"],
        "model": case["model"],
        "model_folder": Path(snakemake.input.model).parent,
        "checkpoint": checkpoint,
        "device": snakemake.params.device,
        "dtype": snakemake.params.dtype,
    }
    scored, seed = Path(snakemake.input.text), snakemake.params.seed
    if case["task"]:
        limit, batch = case["case"]["limit"], snakemake.params.task_batch
        task = TaskEvaluation(
            **subject, task=case["task"], rows=scored, limit=limit, batch_size=batch
        )
        records = evaluate_task(task, config, seed)
    else:
        evaluation = Evaluation(
            **subject,
            dataset=case["text"],
            split=case["case"]["split"],
            text=scored,
            context=case["case"]["context"],
            windows=case["case"]["windows"],
            joiner=config["texts"][case["text"]]["joiner"],
            integer_windows=snakemake.params.integer_windows,
        )
        records = evaluate_row(evaluation, config, seed)
    write_records(snakemake.output[0], records)
