# SPDX-License-Identifier: Apache-2.0
"""Fig. 3: the magnitude of activations over tokens and channels."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d.axes3d import Axes3D

from comet.figures import arrays, style
from comet.figures.spec import FigureInputs, FigureSpec

PANELS = 4
TOKEN_BINS, CHANNEL_BINS = 64, 144
ABSENT = "not measured: no activation statistics; run the quantize target first"
PAPER = (
    "The paper shows LLaMA-7B layers 10 and 29 (magnitudes to about 6 and 1.4), OPT-13B layer 2 "
    "(about 70) and Qwen2-72B layer 35 (about 60); its values are not available as numbers."
)


def draw(inputs: FigureInputs) -> Figure:
    """Draw one surface for each of up to four linear inputs."""
    if inputs.arrays is None:
        return absent(SPEC.title, [ABSENT, PAPER])
    with arrays.opened(inputs.arrays) as statistics:
        names = arrays.representative(statistics.sampled, PANELS)
        if not names:
            return absent(SPEC.title, [ABSENT, PAPER])
        fig = style.new_figure(3.7 * ((len(names) + 1) // 2) + 1.2)
        for i, name in enumerate(names):
            ax = fig.add_subplot((len(names) + 1) // 2, 2, i + 1, projection="3d")
            _surface(ax, statistics.sample(name))
        style.legend(fig, SPEC.title, device=where(statistics, inputs))
        style.footnote(fig, [source(statistics, inputs), BINS, PAPER])
    return fig


BINS = (
    "Natural channel order. Each point is the largest magnitude of a stretch of tokens and "
    "channels, so that no outlier is lost by drawing fewer points than there are channels."
)


def absent(title: str, lines: list[str]) -> Figure:
    """A figure that says why there is nothing to draw."""
    fig = style.new_figure(1.6)
    style.say(fig.subplots(), lines)
    style.legend(fig, title)
    return fig


def runs(statistics: arrays.Statistics, inputs: FigureInputs) -> list[dict]:
    """Records of the quantize runs of the model that the statistics are of."""
    return [
        r
        for r in inputs.records
        if r["kind"] == "quantize"
        and r["status"] == "ok"
        and r["case"]["model"] == statistics.model
    ]


def source(statistics: arrays.Statistics, inputs: FigureInputs) -> str:
    """Model and calibration text of the statistics, for the note under the figure."""
    texts = {
        inputs.label(r["method"].get("calibration", {}).get("dataset", "not recorded"))
        for r in runs(statistics, inputs)
    }
    text = ", ".join(sorted(texts)) or "not recorded"
    return f"Measured on {inputs.label(statistics.model)}, calibration text: {text}."


def where(statistics: arrays.Statistics, inputs: FigureInputs) -> str:
    """Device of the quantize run."""
    devices = {
        str(r["environment"].get("device", "unknown device")) for r in runs(statistics, inputs)
    }
    return ", ".join(sorted(devices)) or "device not recorded"


def _surface(ax: Axes3D, sample: arrays.Sample) -> None:
    tokens, channels = sample.values.shape
    magnitude = arrays.pooled(np.abs(sample.values), 0, TOKEN_BINS)
    magnitude = arrays.pooled(magnitude, 1, CHANNEL_BINS)
    x = np.linspace(0, channels - 1, magnitude.shape[1])
    y = np.linspace(0, tokens - 1, magnitude.shape[0])
    surface = ax.plot_surface(
        *np.meshgrid(x, y),
        magnitude,
        cmap="viridis",
        rstride=1,
        cstride=1,
        linewidth=0,
        antialiased=False,
    )
    surface.set_rasterized(True)
    ax.set(xlabel="channel", ylabel="token", zlabel="magnitude")
    ax.set_title(sample.name, y=0.98)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_major_locator(MaxNLocator(5))
    ax.tick_params(labelsize=7.5, pad=1)
    ax.view_init(elev=28, azim=-58)
    ax.set_box_aspect((1.5, 1.0, 0.75), zoom=1.04)


SPEC = FigureSpec(
    name="fig3",
    title="Fig. 3: magnitude of activations",
    caption="Activations of linear inputs on calibration text: a few channels are large for every "
    "token. Layers are chosen to show each kind of input once.",
    paper_item="Fig. 3",
    kinds_needed=("quantize",),
    draw=draw,
)
