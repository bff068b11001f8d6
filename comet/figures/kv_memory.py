# SPDX-License-Identifier: Apache-2.0
"""Memory of the KV cache for each token, by format, beside the claim of 75 % less."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec
from comet.speed.attention_cases import MODELS

NAMES = {
    "sdpa-bf16": "16 bit",
    "vllm-fa3-fp8": "FP8",
    "vllm-turboquant-4bit": "TurboQuant, 4 bit",
    "comet-kv4": "KV4",
}
COLOUR = dict(zip(NAMES.values(), (style.GREY, style.ORANGE, style.PINK, style.SKY), strict=True))
CLAIM = 75.0
NOTES = [
    "Computed from the formats, with scales and zeros. KV4 holds 140 bytes a token and KV head of "
    "128 channels instead of 512, and the last page of K in 16 bit beside its pages, which counts "
    "at short contexts. Layers that are kept in 16 bit are not included.",
    "75 % less is told by a secondary source (claim M01); it leaves out scales and zeros.",
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw KiB a token for each model and context, with what is saved against 16 bit."""
    records = _records(inputs)
    models = published.unique(record["case"]["model"] for record in records)
    texts = [] if models else ["not computed: no attention record; run the target attention"]
    rows = (len(models) + 1) // 2
    heights = [2.3] * rows + style.text_heights(texts)
    fig = style.new_figure(sum(heights) + 1.6)
    grid = fig.add_gridspec(len(heights), 2, height_ratios=heights)
    for i, model in enumerate(models):
        panel = [r for r in records if r["case"]["model"] == model]
        _panel(fig.add_subplot(grid[i // 2, i % 2]), panel, MODELS[model].label)
    if texts:
        style.say(fig.add_subplot(grid[-1, :]), texts)
    fig.supylabel("KiB a token, all layers", fontsize=9)
    entries = [(name, "modelled", colour) for name, colour in COLOUR.items()] if models else []
    handles = [bars.baseline_handle(f"claim: {CLAIM:.0f} % less than 16 bit")]
    style.legend(fig, SPEC.title, entries, None, handles, columns=4)
    style.footnote(fig, NOTES)
    return fig


def _records(inputs: FigureInputs) -> list[dict]:
    """Of this run, and of the reference runs what this run does not have; the newest of each."""
    wanted = [r for r in (*inputs.reference, *inputs.records) if SPEC.rows([r])]
    newest = {
        (measured.case_key(r, "model", "context"), r["backend"]): r
        for r in wanted
        if r["status"] == "ok" and r["backend"] in NAMES
    }
    return list(newest.values())


def _panel(ax: Axes, records: list[dict], title: str) -> None:
    contexts = sorted({r["case"]["context"] for r in records})
    groups = {context: f"{context // 1024}k tokens" for context in contexts}
    bytes_of = {(groups[r["case"]["context"]], NAMES[r["backend"]]): r for r in records}
    drawn = {}
    for (group, name), record in bytes_of.items():
        base = bytes_of.get((group, "16 bit"))
        saved = 100 * (1 - record["median"] / base["median"]) if base else 0.0
        text = f"{record['median'] / 1024:.1f}" + (f"\n-{saved:.1f} %" if saved else "")
        drawn[group, name] = bars.Bar(record["median"] / 1024, record["origin"], text=text)
    bars.grouped_bars(ax, list(groups.values()), list(COLOUR), drawn, COLOUR, values=".1f")
    sixteen_bit = max(bar.value for (_, name), bar in drawn.items() if name == "16 bit")
    bars.baseline(ax, sixteen_bit * (1 - CLAIM / 100))
    ax.set_title(title, loc="left")


SPEC = FigureSpec(
    name="kv_memory",
    title="Memory of the KV cache for each token",
    caption="Bytes that the KV cache holds for each token, all layers, in four formats; computed.",
    paper_item="Claim M01: 75 % less KV memory (secondary source)",
    kinds_needed=("attention",),
    draw=draw,
    selects=lambda r: r["metric"] == "kv_bytes_per_token",
)
