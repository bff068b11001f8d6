# SPDX-License-Identifier: Apache-2.0
"""Table 1: perplexity by number format, measured here and published."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "table1_perplexity.csv"
CONDITIONS = ("dataset", "split", "context", "windows")
NOTES = [
    "Published: WikiText-2, context length not stated. The FP16 cells of LLaMA-2 are values at "
    "context 4096, its quantized rows match context 2048, so its losses look 0.35, 0.31 and 0.20 "
    "too large. Perplexities of different texts, contexts or windows are not comparable.",
]
PUBLISHED_ROWS = 2
PUBLISHED_TITLE = "Published, Table 1: WikiText-2, context not stated in the paper"
CEILING_NOTE = "An arrow behind a value: the bar leaves the axis."


def draw(inputs: FigureInputs) -> Figure:
    """Draw one panel for each measured text, context and set of windows, then the paper's table."""
    shown = measured.show(inputs, "accuracy", SPEC.selects)
    panels = by_condition(shown.records)
    heights = [2.5] * len(panels)
    heights += style.text_heights(shown.missing)
    heights += [2.1] * PUBLISHED_ROWS
    fig = style.new_figure(sum(heights) + 1.9)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    backends = published.unique(r["backend"] for records in panels.values() for r in records)
    colour = style.colours(backends)
    clipped = False
    for ax, (condition, records) in zip(axes, panels.items(), strict=False):
        clipped |= _measured_panel(ax, records, backends, colour, inputs)
        ax.set_title(f"Measured on {shown.device}: {describe(condition, inputs)}", loc="left")
    if shown.missing:
        style.say(axes[len(panels)], shown.missing)
    rows = published.rows(inputs.paper, FILE)
    series = published.unique(_series(row) for row in rows)
    published_colour = style.colours(series)
    models = published.unique(row["model"] for row in rows)
    size = -(-len(models) // PUBLISHED_ROWS)
    for i, ax in enumerate(axes[-PUBLISHED_ROWS:]):
        _published_panel(ax, rows, models[i * size : (i + 1) * size], series, published_colour)
    axes[-PUBLISHED_ROWS].set_title(PUBLISHED_TITLE, loc="left")
    fig.supylabel("perplexity per token (lower is better)", fontsize=9)
    entries = [(name, "measured", colour[name]) for name in backends]
    entries += [(name, "published", published_colour[name]) for name in series]
    style.legend(fig, SPEC.title, entries, shown.device, columns=5)
    style.footnote(fig, [*NOTES, *([CEILING_NOTE] if clipped else [])])
    return fig


def by_condition(records: list[dict]) -> dict[tuple, list[dict]]:
    """Records grouped by what makes their perplexities comparable."""
    panels: dict[tuple, list[dict]] = {}
    for record in records:
        key = tuple(record["case"].get(name) for name in CONDITIONS)
        panels.setdefault(key, []).append(record)
    return panels


def describe(condition: tuple, inputs: FigureInputs) -> str:
    """Text, split, context and windows as words."""
    dataset, split, context, windows = condition
    text = inputs.label(str(dataset)) + (f", {split}" if split else "")
    return f"{text}, context {context} tokens, windows {windows}"


def _measured_panel(
    ax: Axes,
    records: list[dict],
    backends: list[str],
    colour: dict[str, str],
    inputs: FigureInputs,
) -> bool:
    present = [name for name in backends if any(r["backend"] == name for r in records)]
    groups = published.unique(style.wrapped(inputs.label(r["case"]["model"])) for r in records)
    drawn = {
        (style.wrapped(inputs.label(r["case"]["model"])), r["backend"]): bars.Bar(
            r["median"], r["origin"]
        )
        for r in records
    }
    values = [bar.value for bar in drawn.values()]
    ceiling = 4 * min(values) if max(values) > 5 * min(values) else None
    bars.grouped_bars(ax, groups, present, drawn, colour, gap_font=7, values=".2f", ceiling=ceiling)
    return ceiling is not None


def _published_panel(
    ax: Axes, rows: list[dict], models: list[str], series: list[str], colour: dict[str, str]
) -> None:
    drawn = {
        (row["model"], _series(row)): bars.Bar(float(row["ppl"]))
        for row in rows
        if row["model"] in models
    }
    bars.grouped_bars(ax, models, series, drawn, colour, gap_font=7, values=".2f")


def _series(row: dict) -> str:
    return "FP16" if row["bits"] == "FP16" else f"{row['bits']} {row['method']}"


SPEC = FigureSpec(
    name="table1",
    title="Table 1: perplexity by number format",
    caption="Perplexity per token, never per word. A measured panel names its text, context length "
    "and windows; only bars of one panel may be compared. The published panel is the paper's "
    "Table 1 on other models and another text unless the measured panel says so.",
    paper_item="Table 1",
    kinds_needed=("accuracy",),
    draw=draw,
    selects=lambda record: record["metric"].startswith("ppl_token_"),
    paper_files=(FILE,),
)
