# SPDX-License-Identifier: Apache-2.0
"""How well GEMM kernels use the GPU: counters and NVML readings of each. Measured only."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec

PANELS = {
    "tensor_pipe_utilisation": "tensor pipe active, % of cycles",
    "issue_slot_utilisation": "issue slots used, % of cycles",
    "dram_throughput": "DRAM, % of peak",
    "l2_throughput": "L2, % of peak",
    "busy_fraction": "SMs active, % of cycles",
    "gpm_tensor_utilisation": "tensor pipe active, % of time (NVML)",
    "gpm_sm_utilisation": "SMs active, % of time (NVML)",
    "gpm_dram_utilisation": "DRAM, % of peak (NVML)",
    "sm_clock": "SM clock, MHz",
    "power": "power, W",
}
# Drawn where there is no counter for the same.
COUNTER_OF = {
    "gpm_tensor_utilisation": "tensor_pipe_utilisation",
    "gpm_sm_utilisation": "busy_fraction",
    "gpm_dram_utilisation": "dram_throughput",
}
NOTES = [
    "Counters: Nsight Compute, one kernel at a time, cold caches, clocks free. Clock, power and "
    "what NVML tells: while the kernel runs over and over. A kernel that fills the tensor pipe is "
    "limited by arithmetic, one that fills DRAM by memory.",
    "The paper prints no percentage of SM utilisation; 45 to 76 % is told by a secondary source.",
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw one panel for each quantity: layers and batches along x, a bar for each kernel."""
    shown = measured.show(inputs, "profile", lambda r: r["metric"] in PANELS)
    seen = {r["metric"] for r in shown.records}
    panels = [m for m in PANELS if m in seen and COUNTER_OF.get(m) not in seen]
    backends = published.unique(r["backend"] for r in shown.records)
    colour = style.colours(backends)
    records = sorted(shown.records, key=lambda r: (r["case"]["model"], r["case"]["m"]))
    groups = published.unique(_group(r, inputs) for r in records)

    texts = shown.missing or ([] if panels else ["not measured: no profile record"])
    heights = [1.7] * len(panels) + style.text_heights(texts)
    fig = style.new_figure(sum(heights) + 1.8)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, metric in zip(axes, panels, strict=False):
        _panel(ax, metric, records, groups, backends, colour, inputs)
    if texts:
        style.say(axes[-1], texts)
    entries = [(name, "measured", colour[name]) for name in backends]
    style.legend(fig, SPEC.title, entries, shown.device, columns=5)
    style.footnote(fig, NOTES)
    return fig


def _group(record: dict, inputs: FigureInputs) -> str:
    case = record["case"]
    return f"{inputs.label(case['model'])}\n{case['layer']}, m = {case['m']}"


def _panel(
    ax: Axes,
    metric: str,
    records: list[dict],
    groups: list[str],
    backends: list[str],
    colour: dict[str, str],
    inputs: FigureInputs,
) -> None:
    drawn = {
        (_group(r, inputs), r["backend"]): bars.Bar(r["median"], r["origin"])
        for r in records
        if r["metric"] == metric
    }
    bars.grouped_bars(ax, groups, backends, drawn, colour, values=".0f")
    ax.set_title(PANELS[metric], loc="left")


SPEC = FigureSpec(
    name="sm_utilisation",
    title="Utilisation of the SMs by GEMM kernels",
    caption="Hardware counters and NVML readings of each kernel: tensor pipe, issue slots, memory, "
    "the share of cycles in which an SM is active, clock and power.",
    paper_item="SM utilisation (secondary source)",
    kinds_needed=("profile",),
    draw=draw,
    selects=lambda r: r["metric"] in PANELS,
)
