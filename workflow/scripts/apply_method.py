# SPDX-License-Identifier: Apache-2.0
"""Quantize one model by one of the methods that FMPQ is compared with."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from comet.fmpq.pipeline import Calibration
from comet.logs import logged
from comet.methods.pipeline import apply_method
from comet.methods.registry import method_named
from comet.models.folder import ModelFolder
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    params, name = snakemake.params, snakemake.wildcards.method
    text = params.calibration["text"]
    weights = load_file(snakemake.input.weights[0]) if snakemake.input.weights else None
    apply_method(
        name,
        method_named(name, params.settings),
        ModelFolder(Path(snakemake.input.model).parent),
        Calibration(
            Path(snakemake.input.text),
            dataset=text,
            windows=params.calibration["windows"],
            context=params.calibration["context"],
            joiner=snakemake.config["texts"][text]["joiner"],
        ),
        Path(snakemake.output[0]),
        device=params.device,
        dtype=params.dtype,
        seed=params.seed,
        weights=weights,
    )
