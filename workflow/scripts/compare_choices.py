# SPDX-License-Identifier: Apache-2.0
"""Measure what each open option of FMPQ is worth on one model."""

from pathlib import Path

import torch

from comet.accuracy.choices import Comparison, compare_choices
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration
from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    params, config = snakemake.params, snakemake.config
    calibration, text = params.calibration["text"], config["accuracy"]["texts"][0]
    comparison = Comparison(
        model=snakemake.wildcards.model,
        folder=Path(snakemake.input.model).parent,
        calibration=Calibration(
            Path(snakemake.input.calibration),
            dataset=calibration,
            windows=params.calibration["windows"],
            context=params.calibration["context"],
            joiner=config["texts"][calibration]["joiner"],
        ),
        dataset=text,
        split="test",
        text=Path(snakemake.input.text),
        context=params.accuracy["context"],
        windows=params.accuracy["windows"],
        joiner=config["texts"][text]["joiner"],
    )
    options = FMPQOptions.from_config(params.options)
    records = compare_choices(comparison, options, config, params.seed, params.device)
    write_records(snakemake.output[0], records)
