# SPDX-License-Identifier: Apache-2.0
"""Grouped bars, with the three marks, lower bounds and gaps that say why they are gaps."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from comet.figures import style


@dataclass(frozen=True)
class Bar:
    """One bar: its value, who it comes from, and what is known about it.

    ``status`` is ``ok``, ``lower_bound``, or the word that stands in the gap, for instance ``OOM``.
    ``text`` stands above the bar, instead of the formatted value where values are printed.
    """

    value: float | None
    origin: str = "published"
    status: str = "ok"
    text: str | None = None


def grouped_bars(
    axes: Axes,
    groups: list[str],
    series: list[str],
    bars: dict[tuple[str, str], Bar],
    colour: dict[str, str],
    gap_font: float = 6.5,
    values: str | None = None,
    ceiling: float | None = None,
) -> None:
    """Draw one group of bars for each of ``groups``, one bar for each of ``series``.

    Args:
        axes: where to draw.
        groups, series: names, in drawing order.
        bars: (group, series) -> bar; an absent key leaves an empty place.
        colour: series -> colour.
        gap_font: font size of the word in a gap, and of printed values.
        values: format of the value printed above a bar, for instance ``.2f``; None prints none.
        ceiling: end of the axis; a bar that leaves it carries its value and an arrow.
    """
    width = min(0.84 / max(1, len(series)), 0.07 * (len(groups) + 0.2))
    narrow = values is not None and _too_narrow(axes, len(groups), width, gap_font)
    for g, group in enumerate(groups):
        alone = sum((group, name) in bars for name in series) == 1
        for s, name in enumerate(series):
            bar = bars.get((group, name))
            if bar is None:
                continue
            x = g if alone else g + (s - (len(series) - 1) / 2) * width
            if bar.value is None:
                gap(axes, x, bar.status, colour[name], gap_font)
                continue
            axes.bar(x, bar.value, width * 0.82, **style.mark(bar.origin, colour[name]))
            if bar.status == "lower_bound":
                _lower_bound(axes, x, bar.value, colour[name])
            if values or bar.text:
                text = bar.text or f"{bar.value:{values}}"
                _value(axes, x, bar.value, text, gap_font, narrow, ceiling)
    tall = [min(bar.value, ceiling or bar.value) for bar in bars.values() if bar.value is not None]
    tall = tall or [1.0]
    room = (0.35 if narrow else 0.15) if values else 0.06
    top = ceiling if ceiling in tall else max(0.0, *tall) * (1 + room)
    axes.set_ylim(min(0.0, *tall) * (1 + room), top or None)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")


def gap(axes: Axes, x: float, word: str, colour: str, size: float) -> None:
    """Write why nothing stands at ``x``."""
    axes.annotate(
        word,
        (x, 0),
        xytext=(0, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=size,
        color=colour,
    )


def _lower_bound(axes: Axes, x: float, y: float, colour: str) -> None:
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 0.8, "mutation_scale": 7}
    axes.annotate(
        "",
        (x, y),
        xytext=(0, 11),
        textcoords="offset points",
        arrowprops={**arrow, "arrowstyle": "<|-"},
    )


def _value(
    axes: Axes, x: float, y: float, text: str, size: float, upright: bool, ceiling: float | None
) -> None:
    beyond = ceiling is not None and y > ceiling
    below = beyond or y < 0
    arrow = (" \u2192" if upright else " \u2191") if beyond else ""
    axes.annotate(
        text + arrow,
        (x, ceiling if beyond else y),
        xytext=(0, -2.5 if below else 2.5),
        textcoords="offset points",
        ha="center",
        va="top" if below else "bottom",
        fontsize=size,
        rotation=90 if upright else 0,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85},
        zorder=4,
    )


def _too_narrow(axes: Axes, groups: int, width: float, size: float) -> bool:
    """Whether a value of four digits is wider than its bar, so that it has to stand upright."""
    columns = axes.get_subplotspec().get_gridspec().ncols
    points = 72 * axes.figure.get_figwidth() * 0.92 / columns
    return points / (groups + 0.2) * width < 2.6 * size


def baseline(axes: Axes, value: float = 1.0) -> None:
    """Draw the line of the baseline that everything is relative to."""
    axes.axhline(value, color=style.GREY, linewidth=1.0, linestyle=(0, (4, 2)), zorder=3)


def baseline_handle(text: str) -> Line2D:
    """Legend entry of the baseline."""
    return Line2D([], [], color=style.GREY, linewidth=1.0, linestyle=(0, (4, 2)), label=text)


def lower_bound_handle() -> Line2D:
    """Legend entry of a bar whose top is hidden in the published image."""
    return Line2D([], [], marker=r"$\uparrow$", ms=9, color=style.BLACK, ls="", label="at least")
