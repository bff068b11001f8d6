# SPDX-License-Identifier: Apache-2.0
"""Fig. 11: throughput against batch."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.serving import served
from comet.figures.spec import FigureInputs, FigureSpec

FILE = "fig11_batch_sweep.csv"
BASELINES = ("trtllm-fp16", "vllm-bf16")
NOTES = [
    "COMET over the best TRT-LLM configuration at equal batch: 1.37 is printed, the bars give 1.13 "
    "to 1.27, geometric mean 1.21 (1.35 against W8A8). TRT-LLM-FP16 at batch 64: 7.52 is printed."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw throughput by batch; measured: one panel for each model and setting."""
    rows = [r for r in published.rows(inputs.paper, FILE) if r["source"] == "digitised"]
    series = published.unique(r["series"] for r in rows)
    colour = style.colours(series)
    shown = measured.show(inputs, "serving", lambda r: r["metric"] == "tokens_per_s")
    panels = _by_model(shown.records)

    heights = [2.6] * (1 + len(panels)) + style.text_heights(shown.missing)
    fig = style.new_figure(sum(heights) + 1.4)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    drawn = {(r["batch"], r["series"]): bars.Bar(float(r["value"])) for r in rows}
    batches = published.unique(r["batch"] for r in rows)
    bars.grouped_bars(axes[0], batches, series, drawn, colour, gap_font=8, values=".2f")
    _finish(axes[0], "batch")
    axes[0].set_title("LLaMA-3-8B, 1024 input, 512 output tokens", loc="left")
    entries = [(name, "published", colour[name]) for name in series]
    used = {}
    for ax, ((model, length_in, length_out), pairs) in zip(axes[1:], panels.items(), strict=False):
        used |= _measured_panel(ax, pairs)
        title = f"{inputs.label(model)}, {length_in} input, {length_out} output tokens"
        ax.set_title(f"{title}, {shown.device}", loc="left")
    if shown.missing:
        style.say(axes[-1], shown.missing)
    fig.supylabel("relative throughput", fontsize=9)
    entries += [(name, origin, c) for name, (origin, c) in used.items()]
    handles = [bars.baseline_handle("16-bit engine, smallest batch = 1")]
    style.legend(fig, SPEC.title, entries, shown.device if panels else None, handles, columns=4)
    style.footnote(fig, NOTES)
    return fig


def _by_model(records: list[dict]) -> dict[tuple, list[tuple[dict, float]]]:
    """(model, input, output) -> records with throughput over 16 bit at the fewest requests."""
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        case = record["case"]
        key = case["model"], case["input_tokens"], case["output_tokens"]
        groups.setdefault(key, []).append(record)
    panels = {}
    for key, group in groups.items():
        for name in BASELINES:
            base = [r for r in group if r["backend"] == name]
            if base:
                first = min(base, key=served)
                same = [r for r in group if measured.run_id(r) == measured.run_id(first)]
                panels[key] = [(r, r["median"] / first["median"]) for r in same]
                break
    return panels


def _measured_panel(ax: Axes, pairs: list[tuple[dict, float]]) -> dict[str, tuple[str, str]]:
    series = published.unique(r["backend"] for r, _ in pairs)
    colour = style.colours(series)
    batches = published.unique(
        _batch(r) for r, _ in sorted(pairs, key=lambda pair: served(pair[0]))
    )
    drawn = {(_batch(r), r["backend"]): bars.Bar(v, r["origin"]) for r, v in pairs}
    bars.grouped_bars(ax, batches, series, drawn, colour, gap_font=7.5, values=".2f")
    _finish(ax, "concurrent requests")
    origins = {r["backend"]: r["origin"] for r, _ in pairs}
    return {name: (origins[name], colour[name]) for name in series}


def _batch(record: dict) -> str:
    return f"{served(record)}{' (max)' * (record['case']['requests'] == 'max')}"


def _finish(ax: Axes, label: str) -> None:
    bars.baseline(ax)
    ax.set_xlabel(label)


SPEC = FigureSpec(
    name="fig11",
    title="Fig. 11: serving throughput against batch",
    caption="Throughput relative to the 16-bit engine at the smallest batch. Published bars were "
    "read off the image in the authors' repository (error about 0.02).",
    paper_item="Fig. 11",
    kinds_needed=("serving",),
    draw=draw,
    selects=lambda record: record["metric"] == "tokens_per_s",
    paper_files=(FILE,),
)
