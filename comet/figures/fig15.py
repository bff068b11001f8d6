# SPDX-License-Identifier: Apache-2.0
"""Fig. 15: what the W4Ax kernel and the INT4 KV cache each bring end to end."""

from matplotlib.figure import Figure

from comet.figures import serving
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "fig15_e2e_ablation.csv"
PARTS = (*serving.BASELINES, "vllm-comet-w4ax", "vllm-comet-kv4", "vllm-comet")
NOTES = [
    "OOM: out of memory. Printed averages over both settings: COMET-W4Ax 1.32, COMET-KV4 1.17, "
    "COMET 1.82. COMET-KV4 seems to keep 16-bit weights, since the 70B models do not fit. The "
    "authors' repository quotes 1.38 for COMET-W4Ax, which is the panel 1024/512 alone."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw each part alone and both together, at the largest batch."""

    def choose(records: list[dict]) -> list[dict]:
        return serving.at_best_batch([r for r in records if r["backend"] in PARTS])

    return serving.draw(inputs, SPEC.title, FILE, choose, NOTES)


SPEC = FigureSpec(
    name="fig15",
    title="Fig. 15: the parts of COMET, end to end",
    caption="Throughput at the largest batch relative to the W4A16 engine: the mixed-precision "
    "kernel alone, the INT4 KV cache alone, and both. Published bars were read off the image in "
    "the authors' repository (error about 0.02).",
    paper_item="Fig. 15",
    kinds_needed=("serving",),
    draw=draw,
    selects=lambda record: record["metric"] == "tokens_per_s" and record["backend"] in PARTS,
    paper_files=(FILE,),
)
