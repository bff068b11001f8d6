# SPDX-License-Identifier: Apache-2.0
"""Measure the peak memory of quantizing a model with random weights."""

from pathlib import Path

import torch

from comet.fmpq.memory_run import measure_memory
from comet.fmpq.pipeline import Calibration
from comet.logs import logged
from comet.measurements import write_records
from comet.models.entries import ModelEntry
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=True):
    torch.set_num_threads(snakemake.threads)
    params, config = snakemake.params, snakemake.config
    text = config["calibration"]["text"]
    records = measure_memory(
        ModelEntry.from_config(snakemake.wildcards.model, params.entry),
        Calibration(
            Path(snakemake.input.text),
            dataset=text,
            windows=params.windows,
            context=params.context,
            joiner=config["texts"][text]["joiner"],
        ),
        Path(config["resources"], "memory", snakemake.wildcards.model),
        projected=params.projected,
        config=config,
        seed=params.seed,
        device=params.device,
    )
    write_records(snakemake.output[0], records)
