# SPDX-License-Identifier: Apache-2.0
"""Fig. 10: end-to-end throughput at the largest batch that fits."""

from matplotlib.figure import Figure

from comet.figures import serving
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "fig10_throughput.csv"
NOTES = [
    "OOM: out of memory. GeoMean bars of series with OOM cover 5 of the 7 models. The printed "
    "averages 2.02 and 1.63 lie above the GeoMean bars 1.88 and 1.61; the arithmetic means of the "
    "bars are 1.96 and 1.69. The paper gives neither tokens/s nor batch sizes."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw throughput at the largest batch; measured: at the batch with the highest throughput."""
    return serving.draw(inputs, SPEC.title, FILE, serving.at_best_batch, NOTES)


SPEC = FigureSpec(
    name="fig10",
    title="Fig. 10: serving throughput at the largest batch",
    caption="Throughput relative to the W4A16 engine in the same memory. Published bars were read "
    "off the image in the authors' repository (error about 0.02). Measured bars compare the best "
    "number of concurrent requests of each engine within one run.",
    paper_item="Fig. 10",
    kinds_needed=("serving",),
    draw=draw,
    selects=lambda record: record["metric"] == "tokens_per_s",
    paper_files=(FILE,),
)
