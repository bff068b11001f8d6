# SPDX-License-Identifier: Apache-2.0
"""What the INT4 KV cache costs in perplexity, alone and on top of W4Ax."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.accuracy.recovery import METRICS
from comet.figures import bars, kv4_variants, measured, published, style, table1
from comet.figures.kv4_variants import STEPS
from comet.figures.spec import FigureInputs, FigureSpec
from comet.figures.table import draw_table

BACKENDS = {backend for step in STEPS.values() for backend in step}
COLOUR = {"KV4 alone": style.SKY, "KV4 on W4Ax": style.PURPLE, "KV4 on FMPQ+ W4Ax": style.RED}
PUBLISHED = "KV4 on W4Ax"
CLAIM = 0.05
NOTES = [
    "Published: W4AxKV4 minus W4Ax of Table 1, WikiText-2; the text states 0.05, the table "
    "averages 0.062, between 0.02 and 0.12. Measured increases are of the text and context "
    "in the panel's title; the percentage is relative to the same model without KV4.",
]
VARIANT_NOTE = (
    "Variants: \u00b1 is the paired standard error over windows. The kernels implement K per "
    "channel and page of 64 tokens after RoPE, V per token and head; the others are references in "
    "plain torch. K tensor and V tensor take their range from the very text that is scored."
)


def draw(inputs: FigureInputs) -> Figure:
    """Draw what KV4 costs: on rows of table 1, published, in task scores, and by variant."""
    shown = measured.show(inputs, "accuracy", is_row)
    studied = measured.show(inputs, "accuracy", kv4_variants.selected)
    panels = {
        condition: (records, bars_of)
        for condition, records in table1.by_condition(shown.records).items()
        if (bars_of := increases(records, inputs))
    }
    scored = measured.show(inputs, "accuracy", is_score)
    tables = kv4_variants.task_tables(scored, inputs)
    variants = kv4_variants.panels(studied.records)
    heights = [2.3] * len(panels)
    heights += style.text_heights(shown.missing)
    heights += [2.3]
    heights += [table.height for table in tables]
    heights += [kv4_variants.height(found, key[-1]) for key, found in variants.items()]
    fig = style.new_figure(sum(heights) + 1.6)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for condition, (records, drawn) in panels.items():
        where = f"{shown.where(records)}: {table1.describe(condition, inputs)}"
        _measured_panel(axes.pop(0), where, drawn)
    if shown.missing:
        style.say(axes.pop(0), shown.missing)
    _published_panel(axes.pop(0), inputs)
    for table in tables:
        draw_table(axes.pop(0), table)
    for key, found in variants.items():
        kv4_variants.draw(axes.pop(0), key, found, studied, inputs)
    drawn_steps = [
        step for step in STEPS if any(step == s for _, d in panels.values() for _, s in d)
    ]
    entries = [(step, "measured", COLOUR[step]) for step in drawn_steps]
    entries.append((PUBLISHED, "published", COLOUR[PUBLISHED]))
    handles = [bars.baseline_handle(f"printed claim, {CLAIM}")]
    device = (panels and shown.device) or (variants and studied.device) or None
    style.legend(fig, SPEC.title, entries, device, handles, columns=4)
    style.footnote(fig, [*NOTES, *([VARIANT_NOTE] if variants else [])])
    return fig


def is_row(record: dict) -> bool:
    """Whether a record is the perplexity of a row with or without KV4."""
    return table1.SPEC.selects(record) and record["backend"] in BACKENDS


def is_score(record: dict) -> bool:
    """Whether a record is the task score of such a row."""
    return record["metric"] in METRICS and record["backend"] in BACKENDS


def _measured_panel(ax: Axes, where: str, drawn: dict) -> None:
    groups = published.unique(group for group, _ in drawn)
    steps = [step for step in STEPS if any(s == step for _, s in drawn)]
    bars.grouped_bars(ax, groups, steps, drawn, COLOUR, gap_font=8, values="+.3f")
    ax.set_ylim(top=1.2 * ax.get_ylim()[1])  # room for labels of two lines
    ax.axhline(0, color=style.BLACK, linewidth=0.8)
    ax.set_ylabel("increase of perplexity")
    ax.set_title(f"Measured on {where}", loc="left")


def increases(records: list[dict], inputs: FigureInputs) -> dict[tuple[str, str], bars.Bar]:
    """(model, step) -> increase of perplexity, for the steps whose both ends were measured."""
    value = {(r["case"]["model"], r["backend"]): r["median"] for r in records}
    found = {}
    for model in published.unique(model for model, _ in value):
        for step, (without, with_kv4) in STEPS.items():
            if (model, without) in value and (model, with_kv4) in value:
                before, after = value[model, without], value[model, with_kv4]
                text = f"{after - before:+.3f}\n({after / before - 1:+.2%})"
                group = style.wrapped(inputs.label(model))
                found[group, step] = bars.Bar(after - before, "measured", text=text)
    return found


def _published_panel(ax: Axes, inputs: FigureInputs) -> None:
    rows = published.rows(inputs.paper, table1.FILE)
    ppl = {
        (row["model"], row["bits"]): float(row["ppl"]) for row in rows if row["method"] == "FMPQ"
    }
    models = published.unique(model for model, _ in ppl)
    drawn = {(m, PUBLISHED): bars.Bar(round(ppl[m, "W4AxKV4"] - ppl[m, "W4Ax"], 4)) for m in models}
    bars.grouped_bars(ax, models, [PUBLISHED], drawn, COLOUR, gap_font=8, values="+.2f")
    bars.baseline(ax, CLAIM)
    ax.set_ylabel("increase of perplexity")
    ax.set_title("Published: Table 1, W4AxKV4 minus W4Ax, WikiText-2", loc="left")


SPEC = FigureSpec(
    name="kv4_loss",
    title="Loss by the INT4 KV cache",
    caption="Increase of perplexity when K and V are kept in 4 bit: alone, with everything else in "
    "16 bit, and on top of FMPQ W4Ax; then in task scores; then by granularity, bits and layers.",
    paper_item="Table 1, the text on KV4",
    kinds_needed=("accuracy", "kvcache"),
    draw=draw,
    selects=lambda record: is_row(record) or is_score(record) or kv4_variants.selected(record),
    paper_files=(table1.FILE,),
)
