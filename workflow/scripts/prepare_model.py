# SPDX-License-Identifier: Apache-2.0
"""Prepare a declared model as a Hugging Face folder."""

from pathlib import Path

from comet.logs import logged
from comet.models.entries import ModelEntry
from comet.models.prepare import prepare_model

with logged(snakemake):
    entries = {
        name: ModelEntry.from_config(name, entry)
        for name, entry in snakemake.config["models"].items()
    }
    prepare_model(
        entries[snakemake.wildcards.model],
        entries,
        Path(snakemake.output[0]).parent,
        Path(snakemake.config["resources"]) / "downloads",
    )
