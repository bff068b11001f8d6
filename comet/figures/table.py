# SPDX-License-Identifier: Apache-2.0
"""Tables as the paper prints them, in the marks of the figures."""

from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from comet.figures import style

ROW = 0.2  # inches
LABEL = 3.1
LETTER = 0.062  # of a label, in the mean
FONT = 8.5


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        title: one line above it.
        origin: ``measured``, ``modelled`` or ``published``; the bar at the left edge is its mark.
        columns: heads of the columns; a head may have several lines.
        rows: (label, cells); a cell of None is an empty place.
        strong: numbers of rows that are set in bold.
    """

    title: str
    origin: str
    columns: list[str]
    rows: list[tuple[str, list[str | None]]]
    strong: set[int] = field(default_factory=set)

    @property
    def head_lines(self) -> int:
        """Lines of the tallest head."""
        return max(head.count("\n") + 1 for head in self.columns)

    @property
    def label_width(self) -> float:
        """Inches of the labels' column."""
        longest = max((len(label) for label, _ in self.rows), default=0)
        return max(LABEL, 0.3 + LETTER * longest)

    @property
    def height(self) -> float:
        """Inches that ``draw_table`` needs."""
        return ROW * (len(self.rows) + self.head_lines + 0.5) + 0.3


def draw_table(axes: Axes, table: Table) -> None:
    """Turn an axes into a table; coordinates are inches from the top left."""
    lines = len(table.rows) + table.head_lines + 0.5
    width = style.WIDTH - 0.4
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(lines * ROW, 0)
    axes.set_title(table.title, loc="left")
    step = (width - table.label_width) / max(1, len(table.columns))
    places = [table.label_width + (number + 0.5) * step for number in range(len(table.columns))]
    below = table.head_lines * ROW
    for place, head in zip(places, table.columns, strict=True):
        axes.text(place, below - 0.04, head, ha="center", va="bottom", fontsize=FONT)
    axes.plot([0, width], [below, below], color=style.BLACK, linewidth=0.8)
    for number, (label, cells) in enumerate(table.rows):
        y = below + (number + 0.75) * ROW
        look = {"va": "center", "fontsize": FONT}
        look["fontweight"] = "bold" if number in table.strong else "normal"
        if number % 2:
            stripe = (y - ROW / 2, y + ROW / 2)
            axes.fill_between([0, width], *stripe, color="#f3f3f1", linewidth=0, zorder=0)
        axes.text(0.16, y, label, ha="left", **look)
        for place, cell in zip(places, cells, strict=True):
            if cell is not None:
                axes.text(place, y, cell, ha="center", **look)
    bar = style.mark(table.origin, style.BLACK)
    axes.add_patch(Rectangle((0.02, below + 0.05), 0.07, len(table.rows) * ROW, **bar))
