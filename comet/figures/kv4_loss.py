# SPDX-License-Identifier: Apache-2.0
"""What the INT4 KV cache costs in perplexity, alone and on top of W4Ax."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style, table1
from comet.figures.spec import FigureInputs, FigureSpec

STEPS = {
    "KV4 alone": ("w16a16", "w16a16-kv4"),
    "KV4 on W4Ax": ("fmpq-w4ax", "fmpq-w4axkv4"),
}
BACKENDS = {backend for step in STEPS.values() for backend in step}
COLOUR = {"KV4 alone": style.SKY, "KV4 on W4Ax": style.PURPLE}
PUBLISHED = "KV4 on W4Ax"
CLAIM = 0.05
NOTES = [
    "Published: W4AxKV4 minus W4Ax of Table 1, WikiText-2; the text states 0.05, the table "
    "averages 0.062, between 0.02 and 0.12. Measured increases are of the text and context "
    "in the panel's title; the percentage is relative to the same model without KV4.",
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw the increase of perplexity by KV4: measured panels, then the published one."""
    shown = measured.show(inputs, "accuracy", SPEC.selects)
    panels = {
        condition: bars_of
        for condition, records in table1.by_condition(shown.records).items()
        if (bars_of := increases(records, inputs))
    }
    heights = [2.3] * len(panels)
    heights += style.text_heights(shown.missing)
    heights += [2.3]
    fig = style.new_figure(sum(heights) + 1.6)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, (condition, drawn) in zip(axes, panels.items(), strict=False):
        groups = published.unique(group for group, _ in drawn)
        steps = [step for step in STEPS if any(s == step for _, s in drawn)]
        bars.grouped_bars(ax, groups, steps, drawn, COLOUR, gap_font=8, values="+.3f")
        ax.axhline(0, color=style.BLACK, linewidth=0.8)
        title = f"Measured on {shown.device}: {table1.describe(condition, inputs)}"
        ax.set_title(title, loc="left")
    if shown.missing:
        style.say(axes[-2], shown.missing)
    _published_panel(axes[-1], inputs)
    fig.supylabel("increase of perplexity", fontsize=9)
    drawn_steps = [step for step in STEPS if any(step == s for d in panels.values() for _, s in d)]
    entries = [(step, "measured", COLOUR[step]) for step in drawn_steps]
    entries.append((PUBLISHED, "published", COLOUR[PUBLISHED]))
    handles = [bars.baseline_handle(f"printed claim, {CLAIM}")]
    style.legend(fig, SPEC.title, entries, shown.device if panels else None, handles, columns=4)
    style.footnote(fig, NOTES)
    return fig


def increases(records: list[dict], inputs: FigureInputs) -> dict[tuple[str, str], bars.Bar]:
    """(model, step) -> increase of perplexity, for the steps whose both ends were measured."""
    value = {(r["case"]["model"], r["backend"]): r["median"] for r in records}
    found = {}
    for model in published.unique(model for model, _ in value):
        for step, (without, with_kv4) in STEPS.items():
            if (model, without) in value and (model, with_kv4) in value:
                before, after = value[model, without], value[model, with_kv4]
                text = f"{after - before:+.3f} ({after / before - 1:+.2%})"
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
    ax.set_title("Published: Table 1, W4AxKV4 minus W4Ax, WikiText-2", loc="left")


SPEC = FigureSpec(
    name="kv4_loss",
    title="Loss by the INT4 KV cache",
    caption="Increase of perplexity when K and V are kept in 4 bit: alone, with everything else in "
    "16 bit, and on top of FMPQ W4Ax.",
    paper_item="Table 1, the text on KV4",
    kinds_needed=("accuracy",),
    draw=draw,
    selects=lambda r: r["metric"].startswith("ppl_token_") and r["backend"] in BACKENDS,
    paper_files=(table1.FILE,),
)
