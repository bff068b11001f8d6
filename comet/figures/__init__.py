# SPDX-License-Identifier: Apache-2.0
"""One function a figure: tables in, axes out."""

from matplotlib.figure import Figure

from comet.errors import UserError
from comet.figures import (
    attention_speed,
    fig3,
    fig4,
    fig9,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    kv4_loss,
    kv_memory,
    precision_map,
    sm_utilisation,
    style,
    table1,
    table2,
)
from comet.figures.save import save
from comet.figures.spec import FigureInputs, FigureSpec

MODULES = (
    fig3,
    fig4,
    precision_map,
    table1,
    table2,
    kv4_loss,
    fig9,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    attention_speed,
    kv_memory,
    sm_utilisation,
)
FIGURES: dict[str, FigureSpec] = {module.SPEC.name: module.SPEC for module in MODULES}

__all__ = ["FIGURES", "FigureInputs", "FigureSpec", "draw", "save"]


def draw(name: str, inputs: FigureInputs) -> Figure:
    """Draw one figure of the registry.

    Raises:
        UserError: there is no figure of that name, or a published table is missing.
    """
    if name not in FIGURES:
        raise UserError(f"no figure {name!r}; choose from {', '.join(FIGURES)}")
    with style.context():
        return FIGURES[name].draw(inputs)
