# SPDX-License-Identifier: Apache-2.0
"""Prepare a declared text as calibration and test passages."""

from pathlib import Path

from comet.data.entries import TextEntry
from comet.data.prepare import prepare_text
from comet.logs import logged

with logged(snakemake):
    prepare_text(
        TextEntry.from_config(snakemake.wildcards.text, snakemake.params.entry),
        Path(snakemake.output.test).parent,
        Path(snakemake.config["resources"]) / "downloads",
    )
