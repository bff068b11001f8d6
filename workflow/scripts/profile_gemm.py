# SPDX-License-Identifier: Apache-2.0
"""Counters and NVML readings of the linear layers of one model, or what is missing."""

from pathlib import Path

from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu
from comet.speed.profile import ProfileOptions, profile_cases, profile_records

with logged(snakemake), job_gpu(snakemake, timed=True, optional=True):
    settings = snakemake.params.profile
    records = profile_records(
        profile_cases([snakemake.wildcards.model], settings["m"], settings["layers"]),
        backends=settings["backends"],
        library=Path(snakemake.input.library),
        config=snakemake.config,
        seed=snakemake.params.seed,
        options=ProfileOptions(settings["repeats"], settings["watch_seconds"]),
    )
    write_records(snakemake.output[0], records)
