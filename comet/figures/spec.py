# SPDX-License-Identifier: Apache-2.0
"""What a figure is, and what it is drawn from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureInputs:
    """Everything that a figure may draw from.

    Attributes:
        records: measurements of this run, as the dictionaries of ``Measurement.as_dict``.
        paper: folder of the published tables (``resources/paper``).
        arrays: ``statistics.safetensors`` of a quantize job, or None.
        reference: measurements of the committed reference runs; drawn where this run has none.
        labels: model id -> label, dataset id -> label; an id without a label stands for itself.
    """

    records: list[dict]
    paper: Path
    arrays: Path | None = None
    reference: list[dict] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)

    def label(self, name: str) -> str:
        """The label of a model or data set id."""
        return self.labels.get(name, name)


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the report.

    Attributes:
        name: name of the target that makes it, for instance ``fig9``.
        title: one line above the figure.
        caption: what is drawn, and the cautions that belong to it.
        paper_item: the item of the paper that it stands for, for instance ``Fig. 9``.
        kinds_needed: kinds of record that it draws when there are any.
        draw: inputs -> figure.
        selects: whether a record of a needed kind belongs to this figure.
        paper_files: published tables that it draws, names inside ``FigureInputs.paper``.
    """

    name: str
    title: str
    caption: str
    paper_item: str
    kinds_needed: tuple[str, ...]
    draw: Callable[[FigureInputs], Figure]
    selects: Callable[[dict], bool] = lambda record: True
    paper_files: tuple[str, ...] = ()

    def rows(self, records: list[dict]) -> list[dict]:
        """The records that this figure draws or has to explain the absence of."""
        return [r for r in records if r["kind"] in self.kinds_needed and self.selects(r)]
