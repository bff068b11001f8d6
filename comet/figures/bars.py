# SPDX-License-Identifier: Apache-2.0
"""Grouped bars, with the three marks, lower bounds and gaps that say why they are gaps."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from comet.figures import style


@dataclass(frozen=True)
class Bar:
    """One bar: its value, who it comes from, and what is known about it.

    ``status`` is ``ok``, ``lower_bound``, or the word that stands in the gap (``OOM``, ``missing``).
    """

    value: float | None
    origin: str = "published"
    status: str = "ok"


def grouped_bars(
    axes: Axes,
    groups: list[str],
    series: list[str],
    bars: dict[tuple[str, str], Bar],
    colour: dict[str, str],
    gap_font: float = 6.5,
    values: str | None = None,
) -> None:
    """Draw one group of bars for each of ``groups``, one bar for each of ``series``.

    Args:
        axes: where to draw.
        groups, series: names, in drawing order.
        bars: (group, series) -> bar; an absent key leaves an empty place.
        colour: series -> colour.
        gap_font: font size of the word in a gap, and of printed values.
        values: format of the value printed above a bar, for instance ``.2f``; None prints none.
    """
    width = 0.84 / max(1, len(series))
    for g, group in enumerate(groups):
        for s, name in enumerate(series):
            bar = bars.get((group, name))
            if bar is None:
                continue
            x = g + (s - (len(series) - 1) / 2) * width
            if bar.value is None:
                _gap(axes, x, bar.status, colour[name], gap_font)
                continue
            axes.bar(x, bar.value, width * 0.82, **style.mark(bar.origin, colour[name]))
            if bar.status == "lower_bound":
                _lower_bound(axes, x, bar.value, colour[name])
            if values:
                _value(axes, x, bar.value, f"{bar.value:{values}}", gap_font)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")


def _gap(axes: Axes, x: float, word: str, colour: str, size: float) -> None:
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


def _value(axes: Axes, x: float, y: float, text: str, size: float) -> None:
    axes.annotate(
        text,
        (x, y),
        xytext=(0, 2 if y >= 0 else -2),
        textcoords="offset points",
        ha="center",
        va="bottom" if y >= 0 else "top",
        fontsize=size,
    )


def baseline(axes: Axes, value: float = 1.0) -> None:
    """Draw the line of the baseline that everything is relative to."""
    axes.axhline(value, color=style.GREY, linewidth=1.0, linestyle=(0, (4, 2)), zorder=0.5)


def baseline_handle(text: str) -> Line2D:
    """Legend entry of the baseline."""
    return Line2D([], [], color=style.GREY, linewidth=1.0, linestyle=(0, (4, 2)), label=text)


def lower_bound_handle() -> Line2D:
    """Legend entry of a bar whose top is hidden in the published image."""
    return Line2D([], [], marker="^", ms=4.5, color=style.BLACK, linestyle="", label="at least")


def printed_handle(text: str) -> Line2D:
    """Legend entry of a number that the paper prints beside its bars."""
    return Line2D([], [], marker="D", ms=4.5, mfc="white", color=style.BLACK, ls="", label=text)
