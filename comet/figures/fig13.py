# SPDX-License-Identifier: Apache-2.0
"""Fig. 13: what each technique inside the kernel is worth."""

from matplotlib.figure import Figure

from comet.figures import ablation, measured, published
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "fig13_kernel_ablation.csv"
KERNELS = (ablation.KERNEL, "comet-w4ax-sm80")
THROUGH_PTX = "sm_80 kernel through PTX"
NOTES = [
    "The printed averages 1.69, 1.27 and 1.53 are those of LLaMA-3-8B alone; the GeoMean bars of "
    "LLaMA-3-70B read 1.57, 1.23 and 1.30."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw latency without one technique, relative to the full kernel."""
    rows = published.rows(inputs.paper, FILE)
    shown = measured.show(inputs, "gemm", SPEC.selects)
    pairs = [pair for kernel in KERNELS for pair in _pairs(shown.records, kernel)]
    notes = [*NOTES, *dict.fromkeys(r["method"]["caution"] for _, r, _ in pairs if _emulated(r))]
    return ablation.draw(
        inputs,
        SPEC.title,
        rows,
        "normalised_latency",
        pairs,
        shown,
        "latency relative to the full kernel",
        "full kernel = 1 (higher is slower)",
        notes,
    )


def _pairs(records: list[dict], kernel: str) -> list[tuple[str, dict, float]]:
    """Series, record and normalised latency of a kernel's variants."""
    # Speed-up of the full kernel over the variant is the variant's normalised latency.
    found = measured.ratios(
        [record for record in records if record["backend"] == kernel],
        lambda r: ablation.variant(r) == ablation.FULL,
        on=(*measured.GEMM, "int4_share"),
        higher_is_better=True,
    )
    mark = {True: f" ({THROUGH_PTX})", False: ""}
    return [(ablation.variant(r) + mark[_emulated(r)], r, value) for r, value in found]


def _emulated(record: dict) -> bool:
    """Whether the kernel ran on another GPU than the one it is made for."""
    return "caution" in record["method"]


SPEC = FigureSpec(
    name="fig13",
    title="Fig. 13: the kernel without one of its techniques",
    caption="Latency relative to the full kernel, higher is slower. Published bars were read off "
    "the image in the authors' repository (error about 0.02), the averages are printed.",
    paper_item="Fig. 13",
    kinds_needed=("gemm",),
    draw=draw,
    selects=lambda r: r["metric"] == "time" and r["backend"] in KERNELS,
    paper_files=(FILE,),
)
