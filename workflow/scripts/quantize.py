# SPDX-License-Identifier: Apache-2.0
"""Quantize one model into one checkpoint."""

from pathlib import Path

import torch

from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import quantize_model
from comet.logs import logged
from comet.measurements import write_records

with logged(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    records = quantize_model(
        Path(snakemake.input.model).parent,
        Path(snakemake.input.text),
        Path(snakemake.output.layers).parent,
        FMPQOptions.from_config(snakemake.params.options),
        checkpoint=snakemake.wildcards.checkpoint,
        windows=snakemake.params.calibration["windows"],
        context=snakemake.params.calibration["context"],
        seed=snakemake.params.seed,
        case_model=snakemake.wildcards.model,
    )
    write_records(snakemake.output.records, records)
