# SPDX-License-Identifier: Apache-2.0
"""Prepare the rows of one zero-shot task."""

from pathlib import Path

from comet.data.tasks import prepare_task
from comet.logs import logged

with logged(snakemake):
    tasks = snakemake.params.tasks
    prepare_task(
        snakemake.wildcards.task,
        tasks["source"],
        tasks["sha256"],
        Path(snakemake.output[0]).parent,
        Path(snakemake.config["resources"]) / "downloads",
    )
