# SPDX-License-Identifier: Apache-2.0
"""Fig. 4: where the outliers lie, before and after the channel permutation."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from comet.figures import arrays, fig3, style
from comet.figures.spec import FigureInputs, FigureSpec

PANELS = 3
BLOCK = arrays.BLOCK
COLOUR = {"INT4": style.BLUE, "INT8": style.RED}
MOST_LABELS = 14
NOTES = [
    "Lines cut the channels into blocks of 128, the strip above gives the precision of each block. "
    "Before: a block with at least one of the channels that the permutation puts in INT8 needs "
    "INT8; INT8 blocks are filled, also where fewer than 128 channels are outliers. After: those "
    "channels share the last blocks. Grey is padding; colours end at the 99.5 percentile."
]


def draw(inputs: FigureInputs) -> Figure:
    """Draw heat maps of up to three linear inputs, natural order left, permuted right."""
    if inputs.arrays is None:
        return fig3.absent(SPEC.title, [fig3.ABSENT])
    with arrays.opened(inputs.arrays) as statistics:
        names = arrays.representative(statistics.sampled, PANELS)
        if not names:
            return fig3.absent(SPEC.title, [fig3.ABSENT])
        fig = style.new_figure(2.5 * len(names) + 1.3)
        axes = fig.subplots(len(names), 2, squeeze=False)
        for row, name in zip(axes, names, strict=True):
            _pair(fig, row, statistics.sample(name))
        extra = [Patch(color=colour, label=name) for name, colour in COLOUR.items()]
        style.legend(fig, SPEC.title, device=fig3.where(statistics, inputs), extra=extra)
        style.footnote(fig, [fig3.source(statistics, inputs), *NOTES])
    return fig


def before_and_after(sample: arrays.Sample) -> tuple[list[str], list[str]]:
    """Precision of each block in natural and in permuted order."""
    blocks = len(sample.permutation) // BLOCK
    int4_blocks = blocks - sample.int8_blocks
    after = ["INT4"] * int4_blocks + ["INT8"] * sample.int8_blocks
    outliers = sample.permutation[int4_blocks * BLOCK :]
    hit = set((outliers[outliers >= 0] // BLOCK).tolist())
    before = ["INT8" if block in hit else "INT4" for block in range(blocks)]
    return before, after


def _pair(fig: Figure, axes: np.ndarray, sample: arrays.Sample) -> None:
    magnitude = np.abs(sample.values)
    padded = len(sample.permutation)
    before = np.full((magnitude.shape[0], padded), np.nan, np.float32)
    before[:, : magnitude.shape[1]] = magnitude
    after = np.full_like(before, np.nan)
    real = sample.permutation >= 0
    after[:, real] = magnitude[:, sample.permutation[real]]
    top = float(np.percentile(magnitude, 99.5))
    precisions = before_and_after(sample)
    for ax, values, precision, word in zip(
        axes, (before, after), precisions, ("before", "after"), strict=True
    ):
        image = _heat(ax, values, precision, top)
        share = precision.count("INT8") / len(precision)
        ax.set_title(f"{sample.name}, {word}: {share:.0%} of blocks INT8", loc="left", pad=15)
    fig.colorbar(image, ax=list(axes), label="magnitude", pad=0.01, aspect=18)


def _heat(ax: Axes, values: np.ndarray, precision: list[str], top: float):
    tokens, channels = values.shape
    ax.set_facecolor("#c9c9c9")
    image = ax.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis",
        vmin=0,
        vmax=top,
        extent=(0, channels, tokens, 0),
    )
    for i, name in enumerate(precision):
        ax.add_patch(
            Rectangle(
                (i * BLOCK, 1.015),
                BLOCK,
                0.06,
                transform=ax.get_xaxis_transform(),
                facecolor=COLOUR[name],
                edgecolor="white",
                linewidth=0.8,
                clip_on=False,
            )
        )
        if i:
            ax.axvline(i * BLOCK, color="white", linewidth=0.9)
        if len(precision) <= MOST_LABELS:
            ax.annotate(
                name,
                ((i + 0.5) * BLOCK, 1.045),
                xycoords=ax.get_xaxis_transform(),
                ha="center",
                va="center",
                fontsize=6,
                color="white",
                annotation_clip=False,
            )
    ax.set(xlabel="channel", ylabel="token")
    return image


SPEC = FigureSpec(
    name="fig4",
    title="Fig. 4: outliers before and after the channel permutation",
    caption="The same activations in natural and in permuted channel order. Without the "
    "permutation outliers are spread over the blocks and most blocks need INT8; "
    "with it they share the last.",
    paper_item="Fig. 4",
    kinds_needed=("quantize",),
    draw=draw,
)
