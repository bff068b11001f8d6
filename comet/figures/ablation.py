# SPDX-License-Identifier: Apache-2.0
"""What the kernel ablations (Fig. 13 and 14) share: variants by batch, one panel a model."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs

KERNEL = "comet-w4ax"
FULL = "full"
NAMES = {"average": "printed\naverage"}


def variant(record: dict) -> str:
    """Variant of the kernel; a case that names none is the full kernel."""
    return record["case"].get("variant") or FULL


def draw(
    inputs: FigureInputs,
    title: str,
    rows: list[dict],
    value: str,
    pairs: list[tuple[str, dict, float]],
    shown: measured.Shown,
    ylabel: str,
    base: str,
    notes: list[str],
) -> Figure:
    """Draw one published panel for each model and one measured panel for each measured layer.

    Args:
        inputs: records and tables.
        title: title of the figure.
        rows: published rows with model, variant, batch and the column ``value``.
        value: column of the published value.
        pairs: (series, record, value) of what was measured.
        shown: where the measured values come from and what is missing.
        ylabel: what the values are.
        base: what is 1.
        notes: lines under the figure.
    """
    models = published.unique(r["model"] for r in rows)
    series = published.unique(r["variant"] for r in rows)
    colour = dict(zip(series, (style.BLUE, style.ORANGE, style.RED), strict=True))
    layers = published.unique(_layer(record, inputs) for _, record, _ in pairs)
    names = published.unique(name for name, _, _ in pairs)
    measured_colour = style.colours(names)

    count = 1 + (len(layers) + 1) // 2
    heights = [2.6] * count + style.text_heights(shown.missing)
    fig = style.new_figure(sum(heights) + 1.5)
    grid = fig.add_gridspec(len(heights), 2, height_ratios=heights)
    for i, model in enumerate(models):
        ax = fig.add_subplot(grid[0, i])
        panel = [r for r in rows if r["model"] == model]
        groups = published.unique(NAMES.get(r["batch"], r["batch"]) for r in panel)
        drawn = {
            (NAMES.get(r["batch"], r["batch"]), r["variant"]): bars.Bar(float(r[value]))
            for r in panel
        }
        bars.grouped_bars(ax, groups, series, drawn, colour, gap_font=7, values=".2f")
        _finish(ax, model, "batch")
    for i, layer in enumerate(layers):
        ax = fig.add_subplot(grid[1 + i // 2, i % 2])
        panel = [p for p in pairs if _layer(p[1], inputs) == layer]
        sizes = [str(m) for m in sorted({record["case"]["m"] for _, record, _ in panel})]
        drawn = {(str(r["case"]["m"]), s): bars.Bar(v, r["origin"]) for s, r, v in panel}
        bars.grouped_bars(ax, sizes, names, drawn, measured_colour, gap_font=7, values=".2f")
        _finish(ax, f"{layer}, {shown.device}", "m")
    if shown.missing:
        style.say(fig.add_subplot(grid[-1, :]), shown.missing)
    fig.supylabel(ylabel, fontsize=9)
    entries = [(name, "published", colour[name]) for name in series]
    entries += [(name, pairs[0][1]["origin"], measured_colour[name]) for name in names]
    handles = [bars.baseline_handle(base)]
    style.legend(fig, title, entries, shown.device if pairs else None, handles, columns=4)
    style.footnote(fig, notes)
    return fig


def _layer(record: dict, inputs: FigureInputs) -> str:
    case = record["case"]
    return f"{inputs.label(case['model'])} {case['layer']} {case['n']}x{case['k']}"


def _finish(ax: Axes, title: str, xlabel: str) -> None:
    bars.baseline(ax)
    ax.set_title(title, loc="left")
    ax.set_xlabel(xlabel)
