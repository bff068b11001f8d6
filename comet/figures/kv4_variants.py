# SPDX-License-Identifier: Apache-2.0
"""Panels of the KV cache study: what each variant costs, and what KV4 costs in task scores."""

from matplotlib.axes import Axes

from comet.accuracy.recovery import (
    METRICS,
    TaskRow,
    condition,
    kv_changes,
    paired_difference,
    task_rows,
)
from comet.accuracy.statistics import Estimate
from comet.data.tasks import TASKS
from comet.figures import measured, style
from comet.figures.spec import FigureInputs
from comet.figures.table import Table
from comet.figures.table2 import scored_with

TITLES = {
    "granularity": "What shares a scale",
    "bits": "Bits of K and V",
    "skip": "Layers kept in 16 bit",
    "layers": "One layer in 4 bit at a time",
}
STEPS = {
    "KV4 alone": ("w16a16", "w16a16-kv4"),
    "KV4 on W4Ax": ("fmpq-w4ax", "fmpq-w4axkv4"),
    "KV4 on FMPQ+ W4Ax": ("fmpq-plus-w4ax", "fmpq-plus-w4axkv4"),
}


def selected(record: dict) -> bool:
    """Whether a record belongs to the study of variants."""
    return "kv" in record["case"]


def panels(records: list[dict]) -> dict[tuple, list[tuple[str, Estimate]]]:
    """Changes of perplexity by condition and set, in the order of ``TITLES``."""
    found = kv_changes(filter(selected, records))
    return dict(sorted(found.items(), key=lambda item: (list(TITLES).index(item[0][-1]), item[0])))


def height(changes: list[tuple[str, Estimate]], name: str) -> float:
    """Inches of a panel."""
    return 2.4 if name == "layers" else 1.0 + 0.2 * len(changes)


def draw(
    axes: Axes,
    key: tuple,
    changes: list[tuple[str, Estimate]],
    studied: measured.Shown,
    inputs: FigureInputs,
) -> None:
    """Draw one set: a bar for each variant with its paired standard error."""
    model, dataset, split, context, windows, name = key
    device = studied.where(r for r in studied.records if condition(r) == key[:-1])
    values = [100 * change.value for _, change in changes]
    known = all(change.stderr == change.stderr for _, change in changes)
    errors = [100 * change.stderr if known else 0 for _, change in changes]
    look = style.mark("measured", style.SKY)
    # Of one window there is no standard error; a bar without length would look like a small one.
    error = {"ecolor": style.BLACK, "elinewidth": 0.9, "capsize": 2 if known else 0}
    if name == "layers":
        axes.bar(range(len(values)), values, 0.75, yerr=errors, error_kw=error, **look)
        axes.axhline(0, color=style.BLACK, linewidth=0.8)
        axes.set_xlabel("decoder layer")
        axes.set_ylabel("change, %")
        axes.grid(axis="y")
    else:
        places = range(len(values))
        axes.barh(places, values, 0.72, xerr=errors, error_kw=error, **look)
        axes.set_yticks(places, [label for label, _ in changes])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        widest = max(0.01, *(value + wide for value, wide in zip(values, errors, strict=True)))
        for place, (_, change) in zip(places, changes, strict=True):
            axes.annotate(
                f"{change.value:+.2%}" + (f" \u00b1 {change.stderr:.2%}" if known else ""),
                (max(values[place], 0) + errors[place], place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_xlim(min(0.0, *values) * 1.1, 1.3 * widest)
        axes.axvline(0, color=style.BLACK, linewidth=0.8)
        axes.set_xlabel("change of perplexity, %", fontsize=8)
    text = f"{inputs.label(dataset)}, context {context}, windows {windows}"
    text += "" if known else ": too few for a standard error"
    title = (
        f"{TITLES[name]}, weights in 16 bit\n{inputs.label(model)}\nMeasured on {device}: {text}"
    )
    axes.set_title(title, loc="left")


def task_tables(shown: measured.Shown, inputs: FigureInputs) -> list[Table]:
    """What KV4 costs in accuracy, for each model that was scored with and without it."""
    tables = []
    for metric in METRICS:
        for (model, limit), rows in task_rows(shown.records, metric).items():
            by_name = {row.backend: row for row in rows}
            pairs = {
                step: (by_name[without], by_name[with_kv4])
                for step, (without, with_kv4) in STEPS.items()
                if without in by_name and with_kv4 in by_name
            }
            tasks = [
                t for t in TASKS if any(t in row.cells for pair in pairs.values() for row in pair)
            ]
            if metric == "acc_norm":
                tasks = [task for task in tasks if metric in TASKS[task].metrics]
            if not pairs or not tasks:
                continue
            items = f"first {limit} items" if limit else "all items"
            title = (
                f"Measured on {shown.where(scored_with(shown.records, model, limit))}: "
                f"{inputs.label(model)}\n"
                f"{metric} with KV4 minus without, points (paired), {items} of each task"
            )
            heads = [TASKS[task].label for task in tasks]
            cells = [(step, _differences(*pair, tasks)) for step, pair in pairs.items()]
            tables.append(Table(title, "measured", heads, cells))
    return tables


def _differences(without: TaskRow, with_kv4: TaskRow, tasks: list[str]) -> list[str | None]:
    cells: list[str | None] = []
    for task in tasks:
        before, after = without.cells.get(task), with_kv4.cells.get(task)
        change = before and after and paired_difference(after.items, before.items)
        cells.append(
            f"{100 * change.value:+.1f} \u00b1 {100 * change.stderr:.1f}" if change else None
        )
    return cells
