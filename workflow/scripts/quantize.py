# SPDX-License-Identifier: Apache-2.0
"""Quantize one model into one checkpoint."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.logs import logged
from comet.measurements import write_records
from comet.models.folder import ModelFolder
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    params, config = snakemake.params, snakemake.config
    text = params.calibration["text"]
    weights = load_file(snakemake.input.weights[0]) if snakemake.input.weights else None
    records = quantize_model(
        ModelFolder(Path(snakemake.input.model).parent),
        Calibration(
            Path(snakemake.input.text),
            dataset=text,
            windows=params.calibration["windows"],
            context=params.calibration["context"],
            joiner=config["texts"][text]["joiner"],
        ),
        Path(snakemake.output.layers).parent,
        FMPQOptions.from_config(params.options),
        checkpoint=snakemake.wildcards.checkpoint,
        model=snakemake.wildcards.model,
        config=config,
        seed=params.seed,
        device=params.device,
        dtype=params.dtype,
        weights=weights,
    )
    write_records(snakemake.output.records, records)
