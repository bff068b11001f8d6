# SPDX-License-Identifier: Apache-2.0
"""Time the decode attention of one model, or record what is missing; memory of its KV cache."""

from pathlib import Path

from comet.logs import logged
from comet.measurements import write_records
from comet.speed.attention_bench import attention_records, memory_records
from comet.speed.attention_cases import attention_jobs
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=True, optional=True):
    model, params = snakemake.wildcards.model, snakemake.params
    records = attention_records(
        attention_jobs(model, params.backends),
        library=Path(snakemake.input.library),
        config=snakemake.config,
        seed=params.seed,
        keep=Path(params.keep),
    )
    records += memory_records([model], snakemake.config, params.seed)
    write_records(snakemake.output[0], records)
