# SPDX-License-Identifier: Apache-2.0
"""Compile the CUDA library, or a variant of it, and describe it in build.json."""

from pathlib import Path

from comet.kernels.build import build
from comet.logs import logged

with logged(snakemake):
    build(
        Path(snakemake.output.info).parent,
        jobs=snakemake.threads,
        defines=snakemake.params.get("defines"),
        archs=[name.removeprefix("sm_") for name in snakemake.params.architectures],
    )
