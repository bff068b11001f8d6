# SPDX-License-Identifier: Apache-2.0
"""The look of every figure: fonts, sizes, colours, and the three marks.

Measured is a solid bar, modelled a hatched one, published a hollow one. The legend of every figure
names the three, and the device behind what was measured.
"""

import textwrap

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

PAPER_DEVICE = "paper, A100-80GB"
WIDTH = 11.0  # inches; 1056 pixels of a browser, so that a figure is read at 100 %
RC = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "figure.dpi": 96,
    "savefig.dpi": 144,
    "svg.fonttype": "path",
    "svg.hashsalt": "comet",
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
}

GREY, BLUE, SKY, GREEN, ORANGE, RED, PURPLE, BROWN, PINK, OLIVE, BLACK = (
    "#6b6b6b",
    "#0072b2",
    "#56b4e9",
    "#009e73",
    "#e69f00",
    "#c8372d",
    "#7b4fa0",
    "#7a5230",
    "#d98cb3",
    "#8a8d0f",
    "#222222",
)
# One colour for one number format, whoever implements it; a mark tells who measured it.
COLOURS = {
    GREY: "cuBLAS-W16A16, cublas-bf16, TRT-LLM-FP16, trtllm-fp16, vllm-bf16, w16a16, FP16",
    BLUE: "TRT-LLM-W4A16, trtllm-w4a16, vllm-w4a16, vllm-marlin-w4a16, fmpq-w4a16, W4A16 OmniQuant",
    SKY: "vllm-machete-w4a16, gptq-w4a16, rtn-w4a16, W4A16 GPTQ, COMET-KV4, vllm-comet-kv4",
    ORANGE: "TRT-LLM-W8A8, trtllm-w8a8, cublaslt-int8, vllm-cutlass-int8, rtn-w8a8, vllm-fp8, "
    "W8A8 SmoothQuant",
    GREEN: "Qserve, qserve, comet-w4a8, vllm-marlin-w4a8, vllm-fp8-kv8, W4A8KV4 QoQ",
    RED: "COMET-W4Ax, COMET, comet-w4ax, fmpq-w4ax, vllm-comet, W4Ax FMPQ",
    PURPLE: "fmpq-w4axkv4, vllm-comet-w4ax, W4AxKV4 FMPQ",
    BROWN: "fmpq-w4a4, W4A4 OmniQuant, torch-fp8, vllm-cutlass-fp8",
    PINK: "w16a16-kv4, W4A16 AWQ, vllm-cutlass-w4a8",
}
COLOUR_OF = {name: colour for colour, names in COLOURS.items() for name in names.split(", ")}
PALETTE = (RED, BLUE, ORANGE, GREEN, PURPLE, SKY, BROWN, PINK, OLIVE, GREY, BLACK)


def colours(series: list[str]) -> dict[str, str]:
    """A colour for each series: its fixed one unless taken, else the first that is free."""
    chosen: dict[str, str] = {}
    for name in series:
        if COLOUR_OF.get(name) not in (None, *chosen.values()):
            chosen[name] = COLOUR_OF[name]
    for name in series:
        free = [c for c in PALETTE if c not in chosen.values()] or list(PALETTE)
        chosen.setdefault(name, free[0])
    return chosen


def mark(origin: str, colour: str) -> dict:
    """Patch properties of the mark of an origin: measured, modelled or published."""
    return {
        "measured": {"facecolor": colour, "edgecolor": colour, "linewidth": 0.6},
        "modelled": {"facecolor": "white", "edgecolor": colour, "hatch": "////", "linewidth": 0.6},
        "published": {"facecolor": "white", "edgecolor": colour, "linewidth": 1.3},
    }[origin]


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of the house size, inches; layout keeps labels apart."""
    return Figure(figsize=(width, height), layout="constrained")


def legend(
    fig: Figure,
    title: str,
    entries: list[tuple[str, str, str]] = (),
    device: str | None = None,
    extra: list = (),
    columns: int = 6,
) -> None:
    """Put title, series and the three marks above the axes.

    Args:
        fig: the figure.
        title: one line, bold.
        entries: (series, origin, colour) of what is drawn.
        device: name of the device behind what was measured; None where nothing was.
        extra: further legend handles.
        columns: entries a line.
    """
    handles = [Patch(label=name, **mark(origin, colour)) for name, origin, colour in entries]
    measured = f"measured ({device})" if device else "measured (none here)"
    marks = [("measured", measured), ("modelled", "modelled")]
    marks.append(("published", f"published ({PAPER_DEVICE})"))
    handles += [*extra, *(Patch(label=text, **mark(origin, BLACK)) for origin, text in marks)]
    box = fig.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(columns, len(handles)),
        frameon=False,
        title=title,
        columnspacing=1.4,
        handlelength=1.6,
    )
    box.get_title().set(fontweight="bold", fontsize=10.5)


def footnote(fig: Figure, lines: list[str]) -> None:
    """Put small lines under the axes, wrapped to the figure's width."""
    width = int(fig.get_figwidth() * 16.5)
    text = "\n".join(part for line in lines for part in textwrap.wrap(line, width))
    fig.supxlabel(text, fontsize=8, color="#444444", x=0.01, ha="left", linespacing=1.4)


def wrapped(label: str, width: int = 30) -> str:
    """A long label on several lines."""
    return "\n".join(textwrap.wrap(label, width)) or label


def share(value: float, form: str) -> str:
    """A formatted number, or a dash where there is none."""
    return f"{value:{form}}" if value == value else "\u2013"


def said(lines: list[str]) -> list[str]:
    """The lines wrapped to a panel as wide as the figure."""
    return [part for line in lines for part in textwrap.wrap(line, int(WIDTH * 13))]


def text_heights(lines: list[str]) -> list[float]:
    """Height in inches of the panel that ``say`` needs, as a list; empty where nothing is said."""
    return [0.1 + 0.17 * len(said(lines))] if lines else []


def say(axes, lines: list[str]) -> None:
    """Turn a panel into text: what is not there, and why."""
    axes.set_axis_off()
    axes.text(
        0.0,
        0.5,
        "\n".join(said(lines)),
        transform=axes.transAxes,
        va="center",
        fontsize=8.5,
        color=GREY,
    )


def context():
    """The style as a context manager."""
    return mpl.rc_context(RC)
