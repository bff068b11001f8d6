# SPDX-License-Identifier: Apache-2.0
"""Start one serving engine and time its loads, or record what is missing."""

from pathlib import Path

from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu
from comet.speed.serving.cases import ServingJob
from comet.speed.serving.records import serving_records

with logged(snakemake), job_gpu(snakemake, timed=True, optional=True):
    params = snakemake.params
    records = serving_records(
        [ServingJob.from_dict(params.job)],
        config=snakemake.config,
        seed=params.seed,
        repeats=params.repeats,
        keep=Path(params.keep),
    )
    write_records(snakemake.output[0], records)
