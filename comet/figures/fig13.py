# SPDX-License-Identifier: Apache-2.0
"""Fig. 13: what each technique inside the kernel is worth."""

from matplotlib.figure import Figure

from comet.figures import ablation, measured, published
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "fig13_kernel_ablation.csv"
NOTES = [
    "The printed averages 1.69, 1.27 and 1.53 are those of LLaMA-3-8B alone; the GeoMean bars of "
    "LLaMA-3-70B read 1.57, 1.23 and 1.30."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw latency without one technique, relative to the full kernel."""
    rows = published.rows(inputs.paper, FILE)
    shown = measured.show(inputs, "gemm", SPEC.selects)
    # Speed-up of the full kernel over the variant is the variant's normalised latency.
    found = measured.ratios(
        shown.records,
        lambda r: ablation.variant(r) == ablation.FULL,
        on=(*measured.GEMM, "int4_share"),
        higher_is_better=True,
    )
    pairs = [(ablation.variant(r), r, value) for r, value in found]
    return ablation.draw(
        inputs,
        SPEC.title,
        rows,
        "normalised_latency",
        pairs,
        shown,
        "latency relative to the full kernel",
        "full kernel = 1 (higher is slower)",
        NOTES,
    )


SPEC = FigureSpec(
    name="fig13",
    title="Fig. 13: the kernel without one of its techniques",
    caption="Latency relative to the full kernel, higher is slower. Published bars were read off "
    "the image in the authors' repository (error about 0.02), the averages are printed.",
    paper_item="Fig. 13",
    kinds_needed=("gemm",),
    draw=draw,
    selects=lambda r: r["metric"] == "time" and r["backend"] == ablation.KERNEL,
    paper_files=(FILE,),
)
