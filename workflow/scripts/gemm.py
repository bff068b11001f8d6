# SPDX-License-Identifier: Apache-2.0
"""Time the linear layers of one model, or record what is missing."""

from pathlib import Path

from comet.logs import logged
from comet.measurements import write_records
from comet.speed.bench import gemm_records
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=True, optional=True):
    records = gemm_records(
        snakemake.wildcards.model,
        m=snakemake.params.m,
        backends=snakemake.params.backends,
        library=Path(snakemake.input.library),
        config=snakemake.config,
        seed=snakemake.params.seed,
    )
    write_records(snakemake.output[0], records)
