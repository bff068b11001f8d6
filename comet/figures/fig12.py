# SPDX-License-Identifier: Apache-2.0
"""Fig. 12: end-to-end throughput at a fixed batch of 4."""

from matplotlib.figure import Figure

from comet.figures import serving
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "fig12_fixed_batch.csv"
BATCH = 4
NOTES = [
    "OOM: out of memory. Printed: COMET 2.20 x FP16, 1.43 x W8A8, 1.18 x W4A16. The first two "
    "match only the panel 1024/512 (2.19 and 1.42); the panel 128/128 gives 1.93 and 1.33."
]


def at_batch_4(records: list[dict]) -> list[dict]:
    """The records with four concurrent requests."""
    return [record for record in records if record["case"]["requests"] == BATCH]


def draw(inputs: FigureInputs) -> Figure:
    """Draw throughput with four concurrent requests."""
    return serving.draw(inputs, SPEC.title, FILE, at_batch_4, NOTES)


SPEC = FigureSpec(
    name="fig12",
    title="Fig. 12: serving throughput at batch 4",
    caption="Throughput relative to the W4A16 engine with four concurrent requests, where memory "
    "saved buys nothing. Published bars were read off the image in the authors' repository (error "
    "about 0.02).",
    paper_item="Fig. 12",
    kinds_needed=("serving",),
    draw=draw,
    selects=lambda record: record["metric"] == "tokens_per_s",
    paper_files=(FILE,),
)
