# SPDX-License-Identifier: Apache-2.0
"""Fig. 9: speed-up of GEMM kernels over cuBLAS, shape by shape."""

import statistics
from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comet.figures import ablation, bars, measured, published, style
from comet.figures.spec import FigureInputs, FigureSpec
from comet.speed import gemm_bars
from comet.speed.cases import is_default

BASELINE = "cublas-bf16"
CONTROL = "comet-w4a8"
FIRST = (ablation.KERNEL, CONTROL)  # the others follow as they come
LAYERS = ("qkv", "o", "gate_up", "down")
OTHER_GPU = "comet-w4ax-sm80"  # the kernel of another GPU through PTX
FILE = "fig9_kernel_speedup.csv"
MEANS = "fig9_means.csv"
MEAN = "GeoMean"
FEW_GROUPS = 8  # labels of more stand upright, their model above them
CODES = {
    "bs2-label": "batch 2: shape labels unreliable, use the mean only",
    "bs2-mismatch": "batch 2: some COMET bars differ from batch 4 by more than 10 %",
    "bs16-shift": "batch 16: 31 bars under 32 labels, the first taken as missing",
    "cublas-outlier": "batch 8, LLaMA-1-30B 6.5Kx6.5K: a cuBLAS outlier lowers the mean",
}


def draw(inputs: FigureInputs) -> Figure:
    """Draw each published panel, and the measured one of the same batch below it."""
    rows = published.rows(inputs.paper, FILE)
    means = published.rows(inputs.paper, MEANS)
    series = published.unique(row["series"] for row in rows)
    colour = style.colours(series)
    batches = published.unique(row["batch"] for row in rows)
    shown = measured.show(inputs, "gemm", lambda r: r["metric"] == "time")
    pairs = measured.ratios(shown.records, lambda r: r["backend"] == BASELINE, on=measured.GEMM)
    pairs = [p for p in _one_run_a_case(pairs) if p[0]["backend"] != OTHER_GPU]
    pairs = _as_published(pairs, published.unique(row["model"] for row in rows))
    sizes = _sizes({record["case"]["m"] for record, _ in pairs}, batches)
    backends = published.unique(record["backend"] for record, _ in pairs)
    measured_colour = style.colours(backends)

    panels = _panels(batches, sizes)
    heights = [1.25 if kind == "published" else 2.6 for kind, _ in panels]
    heights += style.text_heights(shown.missing)
    fig = style.new_figure(sum(heights) + 3.4)
    axes = list(fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for ax, (kind, batch) in zip(axes, panels, strict=False):
        if kind == "published":
            panel = [row for row in rows if row["batch"] == str(batch)]
            labelled = str(batch) == batches[-1] or batch in sizes
            _published_panel(ax, panel, means, str(batch), series, colour, labelled)
        else:
            _measured_panel(ax, [p for p in pairs if p[0]["case"]["m"] == batch], inputs)
            ax.set_title(f"m = {batch}, measured on {shown.device}", loc="left", pad=16)
    if shown.missing:
        style.say(axes[-1], shown.missing)
    entries = [(name, "published", colour[name]) for name in series]
    entries += [(name, pairs[0][0]["origin"], measured_colour[name]) for name in backends if pairs]
    extra = [bars.baseline_handle("cuBLAS, 16 bit = 1"), bars.lower_bound_handle()]
    style.legend(fig, SPEC.title, entries, shown.device, extra, columns=5)
    fig.supylabel("speed-up over cuBLAS-W16A16", fontsize=9)
    notes = [f"{code}: {text}." for code, text in CODES.items()]
    style.footnote(fig, ["Cautions on the published bars. " + " ".join(notes), *_said(pairs)])
    return fig


def _panels(batches: list[str], sizes: list[int]) -> list[tuple[str, int]]:
    """Panels from top to bottom: by batch, the published one above the measured one."""
    found = [(int(batch), 0, "published") for batch in batches]
    found += [(m, 1, "measured") for m in sizes]
    return [(kind, batch) for batch, _, kind in sorted(found)]


def _one_run_a_case(pairs: list[tuple[dict, float]]) -> list[tuple[dict, float]]:
    """Pairs of the default mode; of a case measured more than once, the run with most backends."""
    runs: dict[tuple, Counter] = {}
    default = [p for p in pairs if is_default(p[0]["case"])]
    for record, _ in default:
        key = measured.case_key(record, *measured.GEMM)
        runs.setdefault(key, Counter())[measured.run_id(record)] += 1

    def chosen(record: dict) -> bool:
        counted = runs[measured.case_key(record, *measured.GEMM)]
        return measured.run_id(record) == counted.most_common(1)[0][0]

    return [pair for pair in default if chosen(pair[0])]


def _as_published(pairs: list[tuple[dict, float]], models: list[str]) -> list:
    """The pairs in the order of the published bars: model by model, each layer by layer."""

    def place(name: str, names: list[str] | tuple[str, ...]) -> int:
        return names.index(name) if name in names else len(names)

    def key(pair: tuple[dict, float]) -> tuple[int, int, int]:
        record, case = pair[0], pair[0]["case"]
        return (
            place(case["model"], models),
            place(case["layer"], LAYERS),
            place(record["backend"], FIRST),
        )

    return sorted(pairs, key=key)


def _said(pairs: list[tuple[dict, float]]) -> list[str]:
    """What has to be known of the measured bars."""
    said = []
    if any(record["backend"] == CONTROL for record, _ in pairs):
        said.append(
            f"{CONTROL} is the same kernel with 8-bit activations everywhere. Hopper has no 4-bit "
            "tensor cores, so that W4Ax cannot be faster than it there; the paper's A100 has them."
        )
    if any(_is_above(record, ratio) for record, ratio in pairs):
        said.append(
            "* more than the limits of an H200 allow over a 16-bit kernel that reaches its own: "
            "there cuBLAS does not."
        )
    return said


def _is_above(record: dict, ratio: float) -> bool:
    own = record["backend"] in (ablation.KERNEL, CONTROL)
    return own and ratio > gemm_bars.ceiling(record["case"])


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
            _name_model(ax, model, (4 * i + 2.1) / len(groups))
    if labelled:
        ax.set_xticklabels([g if g == MEAN else g[1] for g in groups], rotation=90, fontsize=7.5)
        ax.set_xlabel("GEMM, outputs x inputs (as printed)")
    else:
        ax.set_xticklabels([])


def _name_model(ax: Axes, model: str, x: float) -> None:
    above = {"xycoords": "axes fraction", "ha": "center", "va": "bottom", "fontsize": 8.5}
    ax.annotate(model, (x, 1.02), **above)


def _measured_panel(ax: Axes, pairs: list[tuple[dict, float]], inputs: FigureInputs) -> None:
    def shape(record: dict) -> str:
        case = record["case"]
        return f"{inputs.label(case['model'])}\n{case['layer']} {case['n']}x{case['k']}"

    series = published.unique(record["backend"] for record, _ in pairs)
    groups = published.unique(shape(record) for record, _ in pairs)
    drawn = {
        (shape(r), r["backend"]): bars.Bar(v, r["origin"], text="*" if _is_above(r, v) else None)
        for r, v in pairs
    }
    for name in series:
        values = [bar.value for (_, s), bar in drawn.items() if s == name]
        mean = statistics.geometric_mean(values)
        drawn[MEAN, name] = bars.Bar(mean, pairs[0][0]["origin"])
    bars.grouped_bars(ax, [*groups, MEAN], series, drawn, style.colours(series))
    bars.baseline(ax)
    if len(groups) <= FEW_GROUPS:
        ax.set_xticks(ax.get_xticks(), [*groups, MEAN], fontsize=7.5)
        return
    models, layers = zip(*(group.split("\n") for group in groups), strict=True)
    ax.set_xticks(ax.get_xticks(), [*layers, MEAN], rotation=90, fontsize=7.5)
    for model in published.unique(models):
        first = models.index(model)
        end = first + models.count(model)
        ax.axvline(end - 0.5, color="#bbbbbb", linewidth=0.7)
        _name_model(ax, model, (first + end) / 2 / (len(groups) + 1))


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
