# SPDX-License-Identifier: Apache-2.0
"""Block precision by layer: how much of each layer stays in INT8."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import arrays, bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec

METRICS = {
    "int8_block_share": "blocks in INT8, %",
    "outlier_channel_share": "outlier channels, %",
    "w4a4_mac_share": "W4A4 work, %",
}
STATED = {"int8_block_share": 20, "w4a4_mac_share": 84}
# Their blocks are known: none in INT8, and as many as in the checkpoint fmpq.
OTHER_CHECKPOINTS = ("natural", "fmpq-plus")
NOTES = [
    "Dashed: what the paper states for its models, under 20 % of blocks in INT8 and over 84 % of "
    "the work in W4A4; it gives no values by layer. A half-filled block counts as one block, "
    "padding is not counted as work."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw one row for each model and method (a column a share), and the map of inputs by layer."""
    shown = measured.show(inputs, "quantize", SPEC.selects)
    cases = published.unique((r["case"]["model"], r["case"]["method"]) for r in shown.records)
    model_of_map, blocks = _blocks(inputs)
    heights = [2.0] * len(cases) + style.text_heights(shown.missing)
    heights += [1.9] if blocks else []
    if not heights:
        heights, shown = [0.5], measured.Shown([], ["not measured: no quantize record"])
    fig = style.new_figure(sum(heights) + 1.5)
    grid = fig.add_gridspec(len(heights), len(METRICS), height_ratios=heights)
    for row, (model, method) in enumerate(cases):
        case = {"model": model, "method": method}
        records = [r for r in shown.records if case.items() <= r["case"].items()]
        for column, metric in enumerate(METRICS):
            ax = fig.add_subplot(grid[row, column])
            _bars(ax, [r for r in records if r["metric"] == metric], metric)
            if column == 0:
                label = inputs.label(model)
                ax.set_title(f"{label}, {method}" if method not in label else label, loc="left")
    if shown.missing:
        style.say(fig.add_subplot(grid[len(cases), :]), shown.missing)
    if blocks:
        _map(fig, fig.add_subplot(grid[-1, :]), blocks, inputs.label(model_of_map))
    style.legend(
        fig, SPEC.title, device=shown.device, extra=[bars.baseline_handle("stated in the paper")]
    )
    style.footnote(fig, NOTES)
    return fig


def _bars(ax: Axes, records: list[dict], metric: str) -> None:
    for record in sorted(records, key=lambda r: arrays.order(r["case"]["layer"])):
        index, _ = arrays.split(record["case"]["layer"])
        ax.bar(index, record["median"], 0.78, **style.mark(record["origin"], style.RED))
    if metric in STATED:
        bars.baseline(ax, STATED[metric])
    top = max([*(r["median"] for r in records), STATED.get(metric, 0), 1e-9])
    ax.set_ylim(0, min(1.12 * top, 105))
    ax.set(xlabel="layer", ylabel=METRICS[metric])
    ax.grid(axis="y")


def _blocks(inputs: FigureInputs) -> tuple[str, dict[str, dict]]:
    """Model, and ``<layer>.<input>`` -> numbers of INT4 and INT8 blocks; empty without arrays."""
    if inputs.arrays is None:
        return "", {}
    with arrays.opened(inputs.arrays) as statistics:
        return statistics.model, statistics.layers


def _map(fig: Figure, ax: Axes, blocks: dict[str, dict], label: str) -> None:
    names = sorted(blocks, key=arrays.order)
    layers = published.unique(arrays.split(name)[0] for name in names)
    kinds = published.unique(arrays.split(name)[1] for name in names)
    share = np.full((len(kinds), len(layers)), np.nan)
    for name in names:
        index, kind = arrays.split(name)
        counts = blocks[name]
        total = counts["int4_blocks"] + counts["int8_blocks"]
        cell = kinds.index(kind), layers.index(index)
        share[cell] = 100 * counts["int8_blocks"] / total
        if len(layers) <= 40:
            ax.text(
                cell[1],
                cell[0],
                f"{counts['int8_blocks']}/{total}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if share[cell] > 45 else style.BLACK,
            )
    image = ax.imshow(share, aspect="auto", cmap="Reds", vmin=0, vmax=100)
    ax.set_yticks(range(len(kinds)), kinds)
    step = max(1, len(layers) // 40)
    ax.set_xticks(range(0, len(layers), step), layers[::step])
    ax.set_xlabel("layer")
    ax.set_title(f"Blocks in INT8 of all blocks, by linear input: {label}", loc="left")
    fig.colorbar(image, ax=ax, label="INT8, %", pad=0.01, aspect=12)


SPEC = FigureSpec(
    name="precision_map",
    title="Block precision by layer",
    caption="What the permutation leaves in INT8 in each decoder layer: share of blocks, share of "
    "channels taken for outliers, and share of the multiply-accumulate work in W4A4.",
    paper_item="section 3.2, shares stated in the text",
    kinds_needed=("quantize",),
    draw=draw,
    selects=lambda record: (
        record["metric"] in METRICS and record["case"].get("method") not in OTHER_CHECKPOINTS
    ),
)
