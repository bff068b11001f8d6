# SPDX-License-Identifier: Apache-2.0
"""Time the linear layers of one model, or record what is missing."""

from comet.logs import logged
from comet.measurements import write_records
from comet.speed.gemm import measure_model

with logged(snakemake):
    records = measure_model(
        snakemake.wildcards.model,
        m=snakemake.params.m,
        backends=snakemake.params.backends,
        library=snakemake.input.library,
        seed=snakemake.params.seed,
    )
    write_records(snakemake.output[0], records)
