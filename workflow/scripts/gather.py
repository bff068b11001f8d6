# SPDX-License-Identifier: Apache-2.0
"""Join the records of one kind into one file."""

from comet.logs import logged
from comet.measurements import gather

with logged(snakemake):
    paths = [*snakemake.input, *snakemake.params.besides]
    print(f"{gather(paths, snakemake.output[0])} records")
