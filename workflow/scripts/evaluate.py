# SPDX-License-Identifier: Apache-2.0
"""Evaluate one row of one model on one text."""

from pathlib import Path

import torch

from comet.accuracy.evaluate import evaluate_row
from comet.logs import logged
from comet.measurements import write_records

with logged(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    evaluated = snakemake.params.evaluated
    records = evaluate_row(
        evaluated["row"],
        Path(snakemake.input.model).parent,
        Path(snakemake.input.checkpoint).parent if snakemake.input.checkpoint else None,
        Path(snakemake.input.text),
        context=evaluated["case"]["context"],
        windows=evaluated["case"]["windows"],
        case=evaluated["case"],
    )
    write_records(snakemake.output[0], records)
