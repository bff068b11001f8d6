# SPDX-License-Identifier: Apache-2.0
"""Compile the CUDA library and describe it in build.json."""

from pathlib import Path

from comet.kernels.build import build
from comet.logs import logged

with logged(snakemake.log[0]):
    build(
        Path(snakemake.output[0]).parent,
        archs=snakemake.params.architectures,
        jobs=snakemake.threads,
    )
