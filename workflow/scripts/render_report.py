# SPDX-License-Identifier: Apache-2.0
"""Render the figures and records as one HTML file."""

from pathlib import Path

from comet.files import read_json_lines
from comet.logs import logged
from comet.report.render import render

with logged(snakemake.log[0]):
    records = [row for path in snakemake.input.records for row in read_json_lines(path)]
    render(Path(snakemake.input.figures[0]).parent, records, Path(snakemake.output[0]))
