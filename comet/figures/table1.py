# SPDX-License-Identifier: Apache-2.0
"""Table 1: perplexity by number format, measured here and published."""

from matplotlib.figure import Figure

from comet.accuracy import recovery
from comet.accuracy.recovery import TextRow, text_rows
from comet.figures import measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec
from comet.figures.table import Table, draw_table

FILE = "table1_perplexity.csv"
CONDITIONS = ("dataset", "split", "context", "windows")
# Rows of the paper's table in its order, then rows that it does not have.
ORDER = (
    "w16a16",
    "smoothquant",
    "gptq",
    "awq",
    "omniquant-w4a16",
    "fmpq-w4a16",
    "fmpq-w4ax",
    "fmpq-plus-w4ax",
    "omniquant-w4a4",
    "fmpq-w4a4",
    "qoq",
    "fmpq-w4axkv4",
    "fmpq-plus-w4axkv4",
)
COLUMNS = ["perplexity", "over 16 bit", "\u00b1 (paired)", "gap closed", "95 % interval"]
PUBLISHED_TITLE = (
    "Published, Table 1: perplexity per token on WikiText-2, context not stated in the paper"
)
CONTEXT_4096, CHANNEL, QOQ, STATIC_KV = "a", "b", "c", "d"
TRAPS = {
    CONTEXT_4096: "value at context 4096, while the quantized rows match context 2048; the usual "
    "ones are 5.47, 4.88 and 3.32, so these losses look 0.35, 0.31 and 0.20 too large",
    CHANNEL: "one scale for a whole output channel; with groups of 128 AWQ has 5.60 on LLaMA-2-7B",
    QOQ: "QServe's results with one scale per channel, though the text says groups of 128",
    STATIC_KV: "equals QServe's SmoothQuant, which also keeps K and V in static INT8",
}
MARK_OF_METHOD = {"GPTQ": CHANNEL, "AWQ": CHANNEL, "QoQ": QOQ}
STATIC_KV_MODELS = ("LLaMA-2", "LLaMA-3-8B", "Mistral", "LLaMA-1-30B")
NOTES = [
    "Perplexities of different texts, contexts or windows are not comparable. \u00b1 is the "
    "standard error of the change against 16 bit over the same windows. Gap closed: "
    "ln(P4 / x) / ln(P4 / P16), P16 and P4 the rows fmpq-w4a16 and fmpq-w4a4; its interval is a "
    "bootstrap over windows. OmniQuant W4A16 in the paper is per channel as well."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw a table for each measured model, text, context and set of windows, then the paper's."""
    shown = measured.show(inputs, "accuracy", SPEC.selects)
    tables = measured_tables(shown, inputs)
    paper = published_table(published.rows(inputs.paper, FILE))
    heights = [table.height for table in tables]
    heights += style.text_heights(shown.missing)
    heights += [paper.height]
    fig = style.new_figure(sum(heights) + 2.4)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, table in zip(axes, tables, strict=False):
        draw_table(ax, table)
    if shown.missing:
        style.say(axes[len(tables)], shown.missing)
    draw_table(axes[-1], paper)
    style.legend(fig, SPEC.title, device=shown.device, columns=3)
    marks = [f"{mark}: {text}." for mark, text in TRAPS.items()]
    style.footnote(fig, [*NOTES, *marks, *fewer_rows(inputs, shown, recovery.is_text)])
    return fig


def measured_tables(shown: measured.Shown, inputs: FigureInputs) -> list[Table]:
    """One table for each condition; windows that chose defaults are kept from the held-out."""
    names = row_names(shown.records)
    records = recovery.split_windows(shown.records)
    tables, single = [], []
    for key, rows in text_rows(records).items():
        own = [record for record in records if recovery.condition(record) == key]
        rows = sorted(rows, key=lambda row: order(row.backend))
        where = f"{inputs.label(key[0])}\n{describe(key[1:], inputs)}"
        if len(rows) == 1:
            label = f"{where.replace(chr(10), '; ')}: {names[rows[0].backend]}"
            single.append((own, label, f"{rows[0].perplexity:.2f}"))
            continue
        cells = [(names[row.backend], _cells(row)) for row in rows]
        strong = {n for n, row in enumerate(rows) if row.backend.startswith("fmpq-w4ax")}
        title = "\n".join([f"Measured on {shown.where(own)}: {where}", *changed_settings(own)])
        tables.append(Table(title, "measured", COLUMNS, cells, strong))
    if single:
        title = f"Measured on {shown.where(r for own, *_ in single for r in own)}: one row alone"
        cells = [(label, [cell]) for _, label, cell in single]
        tables.append(Table(title, "measured", ["perplexity"], cells))
    return tables


def row_names(records: list[dict]) -> dict[str, str]:
    """Backend -> what its record calls the row, and the backend's name."""
    labels = {r["backend"]: r["method"].get("row", "") for r in records}
    return {name: f"{label} ({name})" if label else name for name, label in labels.items()}


def changed_settings(records: list[dict]) -> list[str]:
    """A line with the settings of methods that the configuration changed; none for no change."""
    found: dict[str, set[str]] = {}
    for record in records:
        config = record["provenance"].get("config", {})
        for name, section in {"FMPQ": config.get("fmpq"), **config.get("methods", {})}.items():
            for key, value in (section or {}).items():
                found.setdefault(f"{key}: {str(value).lower()}", set()).add(name)
    changed = [f"{setting} in {', '.join(sorted(names))}" for setting, names in found.items()]
    return [f"settings {'; '.join(changed)}"] if changed else []


def order(backend: str) -> tuple:
    """Sort key: the paper's order, then the rest by name."""
    for place, start in enumerate(ORDER):
        if backend == start or (not start.startswith("fmpq") and backend.startswith(start)):
            return (place, backend)
    return (len(ORDER), backend)


def fewer_rows(inputs: FigureInputs, shown: measured.Shown, wanted) -> list[str]:
    """A note where a committed run has rows that this run left out."""
    own = {record["backend"] for record in shown.records}
    more = {r["backend"] for r in inputs.reference if r["kind"] == "accuracy" and wanted(r)} - own
    if not own or not more:
        return []
    return [
        f"This run measured {len(own)} rows; {len(more)} more are in the committed reference run. "
        "config/accuracy_full.yaml measures all of them."
    ]


def by_condition(records: list[dict]) -> dict[tuple, list[dict]]:
    """Records grouped by what makes their perplexities comparable."""
    panels: dict[tuple, list[dict]] = {}
    for record in records:
        panels.setdefault(recovery.condition(record, CONDITIONS), []).append(record)
    return panels


def describe(condition: tuple, inputs: FigureInputs) -> str:
    """Text, split, context and windows as words."""
    dataset, split, context, windows = condition
    text = inputs.label(str(dataset))
    text += f", {split}" if split and not text.endswith(split) else ""
    return f"{text}, context {context} tokens, windows {windows}"


def _cells(row: TextRow) -> list[str | None]:
    cells: list[str | None] = [f"{row.perplexity:.2f}", None, None, None, None]
    if row.change:
        cells[1] = f"{row.change.value:+.1%}"
        cells[2] = style.share(row.change.stderr, ".1%")
    if row.gap:
        cells[3] = f"{row.gap.value:.1%}"
        cells[4] = f"{style.share(row.gap.low, '.1%')} to {style.share(row.gap.high, '.1%')}"
    return cells


def published_table(rows: list[dict[str, str]]) -> Table:
    """The paper's table; a letter behind a value names its trap."""
    models = published.unique(row["model"] for row in rows)
    methods = published.unique((row["bits"], row["method"]) for row in rows)
    value = {(r["model"], r["bits"], r["method"]): f"{float(r['ppl']):.2f}" for r in rows}
    cells = [
        (f"{bits} {method}", [_marked(value[m, bits, method], m, method) for m in models])
        for bits, method in methods
    ]
    strong = {n for n, (_, method) in enumerate(methods) if method == "FMPQ"}
    heads = [model.replace("-", "\n", 1).replace("-", " ") for model in models]
    return Table(PUBLISHED_TITLE, "published", heads, cells, strong)


def _marked(value: str, model: str, method: str) -> str:
    mark = MARK_OF_METHOD.get(method)
    if method == "full precision" and model.startswith("LLaMA-2"):
        mark = CONTEXT_4096
    if method == "SmoothQuant" and model.startswith(STATIC_KV_MODELS):
        mark = STATIC_KV
    return f"{value} $^{mark}$" if mark else value


SPEC = FigureSpec(
    name="table1",
    title="Table 1: perplexity by number format",
    caption="Perplexity per token, never per word. A measured table names its model, text, context "
    "length and windows; only rows of one table may be compared. The published table is the "
    "paper's Table 1 on other models and another text unless the measured table says so.",
    paper_item="Table 1",
    kinds_needed=("accuracy",),
    draw=draw,
    selects=lambda record: (
        record["metric"].startswith("ppl_token_")
        and not ({"options", "kv", "protocol"} & set(record["case"]))
    ),
    paper_files=(FILE,),
)
