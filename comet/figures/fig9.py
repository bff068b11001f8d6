# SPDX-License-Identifier: Apache-2.0
"""Fig. 9: speed-up of GEMM kernels over cuBLAS, shape by shape."""

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import ablation, bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec

BASELINE = "cublas-bf16"
FILE = "fig9_kernel_speedup.csv"
MEANS = "fig9_means.csv"
MEAN = "GeoMean"
CODES = {
    "bs2-label": "batch 2: shape labels unreliable, use the mean only",
    "bs2-mismatch": "batch 2: some COMET bars differ from batch 4 by more than 10 %",
    "bs16-shift": "batch 16: 31 bars under 32 labels, the first taken as missing",
    "cublas-outlier": "batch 8, LLaMA-1-30B 6.5Kx6.5K: a cuBLAS outlier lowers the mean",
}


def draw(inputs: FigureInputs) -> Figure:
    """Draw the six published panels, then one panel for each measured batch."""
    rows = published.rows(inputs.paper, FILE)
    means = published.rows(inputs.paper, MEANS)
    series = published.unique(row["series"] for row in rows)
    colour = style.colours(series)
    batches = published.unique(row["batch"] for row in rows)
    shown = measured.show(inputs, "gemm", lambda r: r["metric"] == "time")
    pairs = measured.ratios(shown.records, lambda r: r["backend"] == BASELINE, on=measured.GEMM)
    pairs = [p for p in pairs if ablation.variant(p[0]) == ablation.FULL]
    sizes = _sizes({record["case"]["m"] for record, _ in pairs}, batches)
    backends = published.unique(record["backend"] for record, _ in pairs)
    measured_colour = style.colours(backends)

    heights = [1.25] * len(batches) + [1.7] * len(sizes)
    heights += style.text_heights(shown.missing)
    fig = style.new_figure(sum(heights) + 3.4)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, batch in zip(axes, batches, strict=False):
        panel = [row for row in rows if row["batch"] == batch]
        _published_panel(ax, panel, means, batch, series, colour, batch == batches[-1])
    for ax, m in zip(axes[len(batches) :], sizes, strict=False):
        _measured_panel(ax, [p for p in pairs if p[0]["case"]["m"] == m], inputs)
        ax.set_title(f"m = {m}, measured on {shown.device}", loc="left")
    if shown.missing:
        style.say(axes[-1], shown.missing)
    entries = [(name, "published", colour[name]) for name in series]
    entries += [(name, pairs[0][0]["origin"], measured_colour[name]) for name in backends if pairs]
    extra = [bars.baseline_handle("cuBLAS, 16 bit = 1"), bars.lower_bound_handle()]
    style.legend(fig, SPEC.title, entries, shown.device, extra, columns=5)
    fig.supylabel("speed-up over cuBLAS-W16A16", fontsize=9)
    notes = [f"{code}: {text}." for code, text in CODES.items()]
    style.footnote(fig, ["Cautions on the published bars. " + " ".join(notes)])
    return fig


def _sizes(measured_sizes: set[int], batches: list[str]) -> list[int]:
    """The measured batches to draw: those of the paper first, at most as many as it has."""
    of_paper = {int(batch) for batch in batches}
    ranked = sorted(measured_sizes, key=lambda m: (m not in of_paper, m))
    return sorted(ranked[: len(batches)])


def _published_panel(
    ax: Axes,
    rows: list[dict],
    means: list[dict],
    batch: str,
    series: list[str],
    colour: dict[str, str],
    labelled: bool,
) -> None:
    groups = published.unique((row["model"], row["gemm"]) for row in rows) + [MEAN]
    names = [str(g) for g in groups]
    drawn = {}
    for row in rows:
        status = row["censored"] if row["censored"] != "no" else "ok"
        value = published.number(row["speedup"])
        drawn[str((row["model"], row["gemm"])), row["series"]] = bars.Bar(value, status=status)
    for row in means:
        if row["batch"] == batch and row["mean_kind"] == "GeoMean bar":
            drawn[MEAN, row["series"]] = bars.Bar(float(row["value"]))
    bars.grouped_bars(ax, names, series, drawn, colour, gap_font=5.5)
    bars.baseline(ax)
    ax.set_ylabel(f"batch {batch}")
    models = published.unique(row["model"] for row in rows)
    for i, model in enumerate(models):
        ax.axvline(4 * i + 3.5, color="#bbbbbb", linewidth=0.7)
        if batch in ("2", "16"):
            ax.annotate(
                model,
                ((4 * i + 2.1) / len(groups), 1.02),
                xycoords="axes fraction",
                ha="center",
                va="bottom",
                fontsize=8.5,
            )
    if labelled:
        ax.set_xticklabels([g if g == MEAN else g[1] for g in groups], rotation=90, fontsize=7.5)
        ax.set_xlabel("GEMM, outputs x inputs (as printed)")
    else:
        ax.set_xticklabels([])


def _measured_panel(ax: Axes, pairs: list[tuple[dict, float]], inputs: FigureInputs) -> None:
    def shape(record: dict) -> str:
        case = record["case"]
        return f"{inputs.label(case['model'])}\n{case['layer']} {case['n']}x{case['k']}"

    series = published.unique(record["backend"] for record, _ in pairs)
    groups = published.unique(shape(record) for record, _ in pairs)
    drawn = {(shape(r), r["backend"]): bars.Bar(v, r["origin"]) for r, v in pairs}
    for name in series:
        values = [bar.value for (_, s), bar in drawn.items() if s == name]
        mean = statistics.geometric_mean(values)
        drawn[MEAN, name] = bars.Bar(mean, pairs[0][0]["origin"])
    bars.grouped_bars(ax, [*groups, MEAN], series, drawn, style.colours(series))
    bars.baseline(ax)
    rotation = 90 if len(groups) > 8 else 0
    ax.set_xticks(ax.get_xticks(), [*groups, MEAN], rotation=rotation, fontsize=7.5)


SPEC = FigureSpec(
    name="fig9",
    title="Fig. 9: kernel speed-up over cuBLAS in 16 bit",
    caption="One group of bars is one GEMM of one model, one panel is one batch (rows of the "
    "activation). The published bars were read off the images of the authors' repository, with an "
    "error of about 0.02; they fix the share of INT4 x INT4 work at 75 %. A measured bar is the "
    "median time of cuBLAS in bf16 over that of the backend, same shape and same run.",
    paper_item="Fig. 9",
    kinds_needed=("gemm",),
    draw=draw,
    selects=lambda record: record["metric"] == "time",
    paper_files=(FILE, MEANS),
)
