# SPDX-License-Identifier: Apache-2.0
"""Render the figures and records as one HTML file."""

from pathlib import Path

from comet.figures import FIGURES
from comet.files import read_json_lines
from comet.logs import logged
from comet.report.choices import choice_rows
from comet.report.render import render


def read_all(paths):
    return [row for path in paths for row in read_json_lines(path)]


with logged(snakemake):
    config = snakemake.config
    records, references = read_all(snakemake.input.records), read_all(snakemake.input.references)
    drawn = {Path(path).stem: Path(path) for path in snakemake.input.figures}
    entries = config["models"] | config["texts"]
    context = {
        "labels": {name: entry["label"] for name, entry in entries.items()},
        "choices": choice_rows(read_all(snakemake.input.choices)),
        "profiles": read_all(snakemake.input.profiles),
        "config": config,
        "config_name": snakemake.params.config_name,
        "machine": snakemake.params.machine,
        "paper": Path(snakemake.params.paper),
    }
    render(
        Path(snakemake.output[0]),
        drawn,
        {name: FIGURES[name] for name in drawn},
        records,
        references,
        context,
    )
