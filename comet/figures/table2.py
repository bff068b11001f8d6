# SPDX-License-Identifier: Apache-2.0
"""Table 2: zero-shot accuracy by number format, measured here and published."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "table2_zeroshot.csv"
METRICS = ("acc", "acc_norm")
NOTES = [
    "avg is the printed average; three of them lie 0.06 to 0.08 below the mean of the printed task "
    "values. Whether the paper reports acc or acc_norm is not stated; its HellaSwag values look "
    "like acc. The axis of the published panels starts at 40 %."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw one panel for each measured model and metric, then LLaMA-3-8B and -70B of the paper."""
    rows = published.rows(inputs.paper, FILE)
    sizes = published.unique(row["size"] for row in rows)
    shown = measured.show(inputs, "accuracy", SPEC.selects)
    panels: dict[tuple, list[dict]] = {}
    for record in shown.records:
        panels.setdefault((record["case"]["model"], record["metric"]), []).append(record)
    heights = [2.2] * len(panels)
    heights += style.text_heights(shown.missing)
    heights += [2.2] * len(sizes)
    fig = style.new_figure(sum(heights) + 1.6)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    backends = published.unique(r["backend"] for r in shown.records)
    colour = style.colours(backends)
    for ax, ((model, metric), records) in zip(axes, panels.items(), strict=False):
        _measured_panel(ax, records, backends, colour)
        title = f"Measured on {shown.device}: {inputs.label(model)}, {metric}"
        ax.set_title(title, loc="left")
    if shown.missing:
        style.say(axes[len(panels)], shown.missing)
    series = published.unique(_series(row) for row in rows)
    published_colour = style.colours(series)
    for ax, size in zip(axes[-len(sizes) :], sizes, strict=True):
        _published_panel(ax, [r for r in rows if r["size"] == size], series, published_colour)
        ax.set_title(f"Published, Table 2: LLaMA-3-{size}", loc="left")
    fig.supylabel("accuracy, %", fontsize=9)
    entries = [(name, "measured", colour[name]) for name in backends]
    entries += [(name, "published", published_colour[name]) for name in series]
    style.legend(fig, SPEC.title, entries, shown.device, columns=5)
    style.footnote(fig, NOTES)
    return fig


def _series(row: dict) -> str:
    return "FP16" if row["bits"] == "FP16" else f"{row['bits']} {row['method']}"


def _published_panel(ax: Axes, rows: list[dict], series: list[str], colour: dict) -> None:
    groups = published.unique(row["task"] for row in rows)
    drawn = {(row["task"], _series(row)): bars.Bar(float(row["value"])) for row in rows}
    bars.grouped_bars(ax, groups, series, drawn, colour, gap_font=7.5, values=".1f")
    ax.set_ylim(40, 97)


def _measured_panel(ax: Axes, records: list[dict], backends: list[str], colour: dict) -> None:
    groups = published.unique(r["case"]["task"] for r in records)
    drawn = {
        (r["case"]["task"], r["backend"]): bars.Bar(100 * r["median"], r["origin"]) for r in records
    }
    bars.grouped_bars(ax, groups, backends, drawn, colour, gap_font=7.5, values=".1f")


SPEC = FigureSpec(
    name="table2",
    title="Table 2: zero-shot accuracy by number format",
    caption="Accuracy in percent (higher is better). The paper gives LLaMA-3 8B and 70B on five "
    "tasks; BoolQ is not among them.",
    paper_item="Table 2",
    kinds_needed=("accuracy",),
    draw=draw,
    selects=lambda record: record["metric"] in METRICS,
    paper_files=(FILE,),
)
