# SPDX-License-Identifier: Apache-2.0
"""Score one set of variants of the KV cache on one model."""

from pathlib import Path

import torch

from comet.accuracy.kv4_study import KV4Study, compare_variants
from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    params, config = snakemake.params, snakemake.config
    text = config["accuracy"]["texts"][0]
    study = KV4Study(
        **params.study,
        folder=Path(snakemake.input.model).parent,
        dataset=text,
        text=Path(snakemake.input.text),
        joiner=config["texts"][text]["joiner"],
        device=params.device,
        dtype=params.dtype,
    )
    write_records(snakemake.output[0], compare_variants(study, config, params.seed))
