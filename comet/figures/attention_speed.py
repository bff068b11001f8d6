# SPDX-License-Identifier: Apache-2.0
"""Speed of decode attention over a 4-bit KV cache, row by row, against 16-bit flash decoding."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec
from comet.speed.attention_bars import BARS, CEILING, LEAST_BYTES, OURS, verdict
from comet.speed.attention_cases import MODELS, SIXTEEN_BIT

BASE = "fastest 16-bit kernel of the same run = 1"
NOTES = [
    "One decode step of one layer, KV caches rotated past the L2 cache, pages of 64 tokens in "
    "random order; the 16-bit kernels are sdpa-bf16 and vllm-fa3-bf16. A 4-bit cache moves "
    f"{CEILING:.2f} times fewer bytes than a 16-bit one: no kernel that reads it can be faster than"
    " that where memory decides. A star marks a case with less than "
    f"{LEAST_BYTES / 1e6:.0f} MB of 16-bit KV, which the mean leaves out, as it does contexts "
    "whose last page is half full (1056, 4128).",
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw one panel for each model: batches and contexts along x, a bar for each kernel."""
    shown = measured.show(inputs, "attention", SPEC.selects)
    pairs = relative(shown.records)
    models = published.unique(record["case"]["model"] for record, _ in pairs)
    backends = published.unique(record["backend"] for record, _ in pairs)
    backends.sort(key=lambda name: name != OURS)
    colour = style.colours(backends)

    texts = shown.missing or ([] if pairs else ["not measured: no attention record"])
    heights = [2.2] * len(models) + style.text_heights(texts)
    fig = style.new_figure(sum(heights) + 1.9)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, model in zip(axes, models, strict=False):
        _panel(ax, [p for p in pairs if p[0]["case"]["model"] == model], backends, colour)
        ax.set_title(f"{MODELS[model].label}, measured on {shown.device}", loc="left")
    if texts:
        style.say(axes[-1], texts)
    entries = [(name, "measured", colour[name]) for name in backends]
    handles = [bars.baseline_handle(BASE)] if pairs else []
    style.legend(fig, SPEC.title, entries, shown.device if pairs else None, handles, columns=4)
    fig.supylabel("speed-up", fontsize=9)
    style.footnote(fig, NOTES + _result(shown.records))
    return fig


def relative(records: list[dict]) -> list[tuple[dict, float]]:
    """Each record with its speed-up over the faster 16-bit kernel of its case and run."""
    times: dict[tuple, dict[str, float]] = {}
    for record in records:
        times.setdefault(_key(record), {})[record["backend"]] = record["median"]
    pairs = []
    for record in records:
        sixteen_bit = [times[_key(record)].get(name) for name in SIXTEEN_BIT]
        found = [time for time in sixteen_bit if time]
        if found and (record["backend"] not in SIXTEEN_BIT or len(found) > 1):
            pairs.append((record, min(found) / record["median"]))
    return pairs


def _key(record: dict) -> tuple:
    on = measured.case_key(record, "model", "batch", "context", "heads", "kv_heads", "head_dim")
    return on, measured.run_id(record)


def _panel(
    ax: Axes, pairs: list[tuple[dict, float]], backends: list[str], colour: dict[str, str]
) -> None:
    pairs = sorted(pairs, key=lambda p: (p[0]["case"]["batch"], p[0]["case"]["context"]))
    groups = published.unique(_group(record["case"]) for record, _ in pairs)
    drawn = {
        (_group(record["case"]), record["backend"]): bars.Bar(value, record["origin"])
        for record, value in pairs
    }
    bars.grouped_bars(ax, groups, backends, drawn, colour, values=".2f")
    bars.baseline(ax)


def _group(case: dict) -> str:
    small = "*" if case["kv_bytes_16bit"] < LEAST_BYTES else ""
    context = case["context"]
    tokens = f"{context // 1024}k" if context % 1024 == 0 else str(context)
    return f"b {case['batch']}\n{tokens}{small}"


def _result(records: list[dict]) -> list[str]:
    found = verdict(records)
    if found.mean is None:
        return []
    limits = ", ".join(f"{name} {limit}" for name, limit in BARS.items())
    rows = f"{len(found.rows)} of {len(found.rows) + len(found.missing)} rows"
    return [f"KV4, geometric mean over {rows}: {found.mean:.2f} (bars: {limits})."]


SPEC = FigureSpec(
    name="attention_speed",
    title="Decode attention over a 4-bit KV cache",
    caption="Speed-up of decode attention over the faster of two 16-bit flash decoding kernels, "
    "for the heads of LLaMA-2-7B, LLaMA-3-8B, LLaMA-3-70B and Qwen2-72B.",
    paper_item="Section 6.1, the KV4 kernel",
    kinds_needed=("attention",),
    draw=draw,
    selects=lambda r: r["metric"] == "time",
)
