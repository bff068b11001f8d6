# SPDX-License-Identifier: Apache-2.0
"""Time the linear layers of one model or suite, or record what is missing."""

from pathlib import Path

from comet.logs import logged
from comet.measurements import write_records
from comet.speed.bench import gemm_records
from comet.speed.cases import jobs_of
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=True, optional=True):
    chosen = (snakemake.params.m, snakemake.params.backends)
    records = gemm_records(
        jobs_of(snakemake.wildcards.model, *chosen),
        library=Path(snakemake.input.library),
        config=snakemake.config,
        seed=snakemake.params.seed,
        keep=Path(snakemake.params.keep),
    )
    write_records(snakemake.output[0], records)
