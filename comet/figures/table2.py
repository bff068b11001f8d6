# SPDX-License-Identifier: Apache-2.0
"""Table 2: zero-shot accuracy by number format, measured here and published."""

from matplotlib.figure import Figure

from comet.accuracy.recovery import METRICS, TaskRow, task_rows
from comet.data.tasks import TASKS
from comet.figures import measured, published, style, table1
from comet.figures.spec import FigureInputs, FigureSpec
from comet.figures.table import Table, draw_table

FILE = "table2_zeroshot.csv"
AVERAGE = ("8B FP16", "8B W4A16", "70B W4A8KV4")
NOTES = [
    "\u00b1 is lm-eval's standard error; of a mean, that of independent tasks. A row without mean "
    "was not scored on every task. Against 16 bit: the share of right answers relative to 16 bit "
    "on the same items, and its 95 % interval by bootstrap over items. A star: more than two "
    "paired standard errors from 16 bit.",
    "Published: whether the paper reports acc or acc_norm is not stated, its HellaSwag values look "
    "like acc; BoolQ is not among its tasks.",
    "e: three printed averages lie 0.06 to 0.08 below the mean of the printed task values.",
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw a table for each measured model and metric, then LLaMA-3-8B and -70B of the paper."""
    shown = measured.show(inputs, "accuracy", SPEC.selects)
    tables = [table for metric in METRICS for table in measured_tables(shown, inputs, metric)]
    paper = published_tables(published.rows(inputs.paper, FILE))
    heights = [table.height for table in tables]
    heights += style.text_heights(shown.missing)
    heights += [table.height for table in paper]
    fig = style.new_figure(sum(heights) + 2.0)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, table in zip(axes, tables, strict=False):
        draw_table(ax, table)
    if shown.missing:
        style.say(axes[len(tables)], shown.missing)
    for ax, table in zip(axes[-len(paper) :], paper, strict=True):
        draw_table(ax, table)
    style.legend(fig, SPEC.title, device=shown.device, columns=3)
    style.footnote(fig, [*NOTES, *table1.fewer_rows(inputs, shown, SPEC.selects)])
    return fig


def measured_tables(shown: measured.Shown, inputs: FigureInputs, metric: str) -> list[Table]:
    """One table for each model and number of items; ``acc_norm`` where a task has it."""
    if metric not in {record["metric"] for record in shown.records}:
        return []
    names = table1.row_names(shown.records)
    tables = []
    for (model, limit), rows in task_rows(shown.records, metric).items():
        tasks = [task for task in TASKS if any(task in row.cells for row in rows)]
        if metric == "acc_norm" and not any(metric in TASKS[task].metrics for task in tasks):
            continue
        counts = {len(row.cells[task].items) for row in rows for task in row.cells}
        items = f"the first {limit} items of each" if limit else f"all {sum(counts)} items"
        device = shown.where(scored_with(shown.records, model, limit))
        title = f"Measured on {device}: {inputs.label(model)}\n{metric}, %, zero-shot, {items}"
        heads = [TASKS[task].label for task in tasks] + ["mean", "against 16 bit"]
        rows = sorted(rows, key=lambda row: table1.order(row.backend))
        cells = [(names[row.backend], _cells(row, tasks)) for row in rows]
        strong = {n for n, row in enumerate(rows) if row.backend.startswith("fmpq-w4ax")}
        tables.append(Table(title, "measured", heads, cells, strong))
    return tables


def scored_with(records: list[dict], model: str, limit: int | None) -> list[dict]:
    """The records of a model and number of items."""
    return [r for r in records if (r["case"]["model"], r["case"]["limit"]) == (model, limit)]


def _cells(row: TaskRow, tasks: list[str]) -> list[str | None]:
    cells: list[str | None] = []
    for task in tasks:
        cell = row.cells.get(task)
        if cell is None:
            cells.append(None)
            continue
        star = "*" if cell.difference and cell.difference.beyond_two else ""
        cells.append(f"{100 * cell.value:.1f} \u00b1 {100 * cell.stderr:.1f}{star}")
    # Means over other tasks than the rest of the table could be taken for a difference of rows.
    if not set(tasks) <= set(row.cells):
        return [*cells, None, None]
    cells.append(f"{100 * row.mean:.1f} \u00b1 {100 * row.stderr:.1f}")
    if row.relative is None:
        return [*cells, None]
    low, high = (style.share(end, ".0%") for end in (row.relative.low, row.relative.high))
    return [*cells, f"{style.share(row.relative.value, '.1%')}, {low.rstrip('%')}-{high}"]


def published_tables(rows: list[dict[str, str]]) -> list[Table]:
    """The paper's table, one for each size of LLaMA-3."""
    tables = []
    for size in published.unique(row["size"] for row in rows):
        own = [row for row in rows if row["size"] == size]
        tasks = published.unique(row["task"] for row in own)
        value = {(row["bits"], row["method"], row["task"]): row["value"] for row in own}
        methods = published.unique((row["bits"], row["method"]) for row in own)
        cells = []
        for bits, method in methods:
            line = [f"{float(value[bits, method, task]):.1f}" for task in tasks]
            if f"{size} {bits}" in AVERAGE:
                line[-1] += " $^e$"
            cells.append((f"{bits} {method}", line))
        strong = {n for n, (_, method) in enumerate(methods) if method == "FMPQ"}
        title = f"Published, Table 2: LLaMA-3-{size}, %, zero-shot"
        tables.append(Table(title, "published", tasks, cells, strong))
    return tables


SPEC = FigureSpec(
    name="table2",
    title="Table 2: zero-shot accuracy by number format",
    caption="Accuracy in percent (higher is better), by lm-eval's prompts and metrics. The paper "
    "gives LLaMA-3 8B and 70B on five tasks. Differences below two standard errors are not "
    "findings.",
    paper_item="Table 2",
    kinds_needed=("accuracy",),
    draw=draw,
    selects=lambda record: record["metric"] in METRICS,
    paper_files=(FILE,),
)
