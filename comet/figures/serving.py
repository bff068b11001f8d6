# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end figures (10, 12, 15) share: throughput relative to W4A16, by model."""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import bars, measured, published, style
from comet.figures.spec import FigureInputs

BASELINES = ("trtllm-w4a16", "vllm-w4a16")
# The engine that is the same thing as a published series, and has its colour.
ENGINES = {"COMET": "vllm-comet", "COMET-W4Ax": "vllm-comet-w4ax", "COMET-KV4": "vllm-comet-kv4"}
AVERAGE = "printed\naverage"
AVERAGES = ("average", "GeoMean")
NOT_RUN = "Not run: no engine was measured beside one with W4A16 in the same run."


def draw(
    inputs: FigureInputs,
    title: str,
    file: str,
    choose: Callable[[list[dict]], list[dict]],
    notes: list[str],
) -> Figure:
    """Draw the two published panels and one panel for each measured setting.

    Args:
        inputs: records and tables.
        title: title of the figure.
        file: published table with the columns of Fig. 10.
        choose: of the records of one run, those that the figure compares.
        notes: lines under the figure.
    """
    rows = [r for r in published.rows(inputs.paper, file) if r["input_len"] != "all"]
    rows = [r for r in rows if r["source"] != "repository"]
    settings = published.unique((r["input_len"], r["output_len"]) for r in rows)
    series = published.unique(r["series"] for r in rows)
    engines = style.colours([ENGINES.get(name, name) for name in series])
    colour = {name: engines[ENGINES.get(name, name)] for name in series}
    shown = measured.show(inputs, "serving", lambda r: r["metric"] == "tokens_per_s")
    pairs = relative(choose(shown.records))
    measured_settings = published.unique(setting(record) for record, _ in pairs)
    backends = published.unique(record["backend"] for record, _ in pairs)
    measured_colour = style.colours(backends)

    heights = [2.0] * (len(settings) + len(measured_settings))
    heights += style.text_heights(shown.missing)
    fig = style.new_figure(sum(heights) + 1.6)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, (length_in, length_out) in zip(axes, settings, strict=False):
        panel = [r for r in rows if (r["input_len"], r["output_len"]) == (length_in, length_out)]
        _published_panel(ax, panel, series, colour)
        ax.set_title(f"{length_in} input, {length_out} output tokens", loc="left")
    for ax, wanted in zip(axes[len(settings) :], measured_settings, strict=False):
        panel = [p for p in pairs if setting(p[0]) == wanted]
        _measured_panel(ax, panel, backends, measured_colour, inputs, _published_models(rows))
        ax.set_title(f"{wanted[0]} input, {wanted[1]} output tokens, {shown.device}", loc="left")
    if shown.missing:
        style.say(axes[-1], shown.missing)
    fig.supylabel("throughput relative to W4A16", fontsize=9)
    entries = [(name, "published", colour[name]) for name in series]
    entries += [(name, pairs[0][0]["origin"], measured_colour[name]) for name in backends]
    handles = [bars.baseline_handle("TRT-LLM-W4A16 (measured: W4A16) = 1")]
    style.legend(fig, title, entries, shown.device if pairs else None, handles, columns=4)
    unrun = [NOT_RUN] if measured_settings else []
    style.footnote(fig, [*notes, *unrun])
    return fig


def setting(record: dict) -> tuple[int, int]:
    """Input and output length, tokens."""
    return record["case"]["input_tokens"], record["case"]["output_tokens"]


def served(record: dict) -> int:
    """Concurrent requests; ``max`` is what the engine took at once."""
    asked = record["case"]["requests"]
    return record["method"]["served"] if asked == "max" else asked


def at_best_batch(records: list[dict]) -> list[dict]:
    """For each backend, model, setting and run, the record with the highest throughput."""
    best: dict[tuple, dict] = {}
    for record in records:
        key = (
            record["backend"],
            measured.case_key(record, *measured.SERVING),
            measured.run_id(record),
        )
        if key not in best or record["median"] > best[key]["median"]:
            best[key] = record
    return list(best.values())


def relative(records: list[dict]) -> list[tuple[dict, float]]:
    """Throughput over the W4A16 engine of the same run; TensorRT-LLM where it ran, else vLLM."""
    pairs: dict[int, tuple[dict, float]] = {}
    for baseline in reversed(BASELINES):
        found = measured.ratios(
            records,
            lambda r, name=baseline: r["backend"] == name,
            on=measured.SERVING,
            higher_is_better=True,
        )
        pairs.update({id(record): (record, value) for record, value in found})
    return list(pairs.values())


def _published_panel(ax: Axes, rows: list[dict], series: list[str], colour: dict[str, str]) -> None:
    names = {"average": AVERAGE}
    groups = published.unique(names.get(r["model"], r["model"]) for r in rows)
    drawn = {}
    for row in rows:
        value = published.number(row["relative_throughput"])
        group = names.get(row["model"], row["model"])
        drawn[group, row["series"]] = bars.Bar(value, status=row["status"])
    bars.grouped_bars(ax, groups, series, drawn, colour, gap_font=7.5, values=".2f")
    bars.baseline(ax)


def _measured_panel(
    ax: Axes,
    pairs: list[tuple[dict, float]],
    backends: list[str],
    colour: dict[str, str],
    inputs: FigureInputs,
    wanted: list[str],
) -> None:
    """Models in the order of the published panels; what has not run says so."""
    run = {inputs.label(model): model for model in _models(pairs)}
    labels = [*wanted, *(label for label in run if label not in wanted)]
    ticks = {label: _with_requests(label, run[label], pairs) for label in run}
    drawn = {
        (ticks[inputs.label(r["case"]["model"])], r["backend"]): bars.Bar(v, r["origin"])
        for r, v in pairs
    }
    groups = [ticks.get(label, label) for label in labels]
    bars.grouped_bars(ax, groups, backends, drawn, colour, gap_font=7.5, values=".2f")
    for place, label in enumerate(labels):
        if label not in run:
            bars.gap(ax, place, "not run", style.GREY, 7.5)
    bars.baseline(ax)


def _models(pairs: list[tuple[dict, float]]) -> list[str]:
    return published.unique(record["case"]["model"] for record, _ in pairs)


def _published_models(rows: list[dict]) -> list[str]:
    """Those of the published panels, averages left out."""
    return [name for name in published.unique(r["model"] for r in rows) if name not in AVERAGES]


def _with_requests(label: str, model: str, pairs: list[tuple[dict, float]]) -> str:
    """The model's name over the numbers of concurrent requests that its bars stand for."""
    counts = {served(r) for r, _ in pairs if r["case"]["model"] == model}
    least, most = min(counts), max(counts)
    shown = f"{most}" if least == most else f"{least} to {most}"
    return f"{label}\n{shown} requests"
