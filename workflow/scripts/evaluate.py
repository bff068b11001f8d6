# SPDX-License-Identifier: Apache-2.0
"""Evaluate one row of one model on one text."""

from pathlib import Path

import torch

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    case, config = snakemake.params.evaluated, snakemake.config
    checkpoint = Path(snakemake.input.checkpoint) if case["checkpoint"] else None
    if checkpoint and checkpoint.is_file():
        checkpoint = checkpoint.parent
    evaluation = Evaluation(
        backend=case["row"],
        model=case["model"],
        model_folder=Path(snakemake.input.model).parent,
        dataset=case["text"],
        split=case["case"]["split"],
        text=Path(snakemake.input.text),
        context=case["case"]["context"],
        windows=case["case"]["windows"],
        checkpoint=checkpoint,
        joiner=config["texts"][case["text"]]["joiner"],
        integer_windows=snakemake.params.integer_windows,
        device=snakemake.params.device,
        dtype=snakemake.params.dtype,
    )
    write_records(snakemake.output[0], evaluate_row(evaluation, config, snakemake.params.seed))
