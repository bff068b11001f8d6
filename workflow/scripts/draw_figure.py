# SPDX-License-Identifier: Apache-2.0
"""Draw one figure as SVG and PNG."""

from pathlib import Path

from comet.figures import FigureInputs, draw, save
from comet.files import read_json_lines
from comet.logs import logged


def read_all(paths):
    return [row for path in paths for row in read_json_lines(path)]


with logged(snakemake):
    config = snakemake.config
    entries = config["models"] | config["texts"]
    arrays = snakemake.input.get("arrays")
    inputs = FigureInputs(
        records=read_all(snakemake.input.records),
        paper=Path(snakemake.params.paper),
        arrays=Path(arrays) if arrays else None,
        reference=read_all(snakemake.input.references),
        labels={name: entry["label"] for name, entry in entries.items()},
    )
    stem = Path(snakemake.output.svg).with_suffix("")
    save(draw(snakemake.wildcards.figure, inputs), stem)
