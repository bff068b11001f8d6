# SPDX-License-Identifier: Apache-2.0
"""Every figure: drawn with records and without, the same bytes twice, marks always named."""

import matplotlib as mpl
import pytest
import synthetic_records as synthetic
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba

from comet.errors import UserError
from comet.figures import FIGURES, FigureInputs, draw, save, style
from comet.files import read_json_lines
from comet.measurements import REPOSITORY

EVERYTHING = [
    *synthetic.accuracy(),
    *synthetic.zero_shot(),
    *synthetic.kv_variants(),
    *synthetic.quantize(),
    *synthetic.gemm(),
    *synthetic.serving(),
    *synthetic.profile(),
    *synthetic.attention(),
    synthetic.skip("gemm", {"model": "tiny"}, "time", "comet-w4ax"),
]


def legend_texts(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def visible_words(axes) -> list:
    """Title, axis labels and the tick labels inside the view; of a table, all that it says."""
    if not axes.axison:
        return [axes._left_title, *axes.texts]
    words = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        words += [label for place, label in ticks if low <= place <= high]
    return [word for word in words if word.get_text()]


def overlapping(figure) -> list[tuple[str, str]]:
    """Pairs of titles, labels and tick labels whose boxes intersect by more than a pixel."""
    FigureCanvasAgg(figure).draw()
    boxes = [
        (word.get_text(), word.get_window_extent())
        for axes in figure.axes
        if axes.name != "3d"
        for word in visible_words(axes)
    ]
    return [
        (first, second)
        for i, (first, a) in enumerate(boxes)
        for second, b in boxes[i + 1 :]
        if a.x0 + 1 < b.x1 and b.x0 + 1 < a.x1 and a.y0 + 1 < b.y1 and b.y0 + 1 < a.y1
    ]


@pytest.fixture(scope="session")
def reference_runs() -> list[dict]:
    files = sorted((REPOSITORY / "results").glob("*/*.jsonl"))
    committed = [file for file in files if not file.parent.name.startswith("local-")]
    return [record for file in committed for record in read_json_lines(file)]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_the_reference_runs(name, reference_runs, paper, statistics):
    figure = draw(name, FigureInputs([], paper, statistics, reference_runs))
    assert overlapping(figure) == []


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("records", [[], EVERYTHING], ids=["none", "all"])
def test_a_figure_names_its_marks_and_keeps_labels_apart(name, records, paper, statistics):
    figure = draw(name, FigureInputs(records, paper, statistics if records else None))
    texts = legend_texts(figure)
    assert "modelled" in texts
    assert "published (paper, A100-80GB)" in texts
    assert sum(text.startswith("measured (") for text in texts) == 1
    assert figure.legends[0].get_title().get_text() == FIGURES[name].title
    assert overlapping(figure) == []


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig13"])
def test_equal_input_gives_equal_bytes(name, paper, statistics, tmp_path):
    first = save(draw(name, FigureInputs(EVERYTHING, paper, statistics)), tmp_path / "a")
    second = save(draw(name, FigureInputs(EVERYTHING, paper, statistics)), tmp_path / "b")
    assert [path.suffix for path in first] == [".svg", ".png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<dc:date>" not in first[0].read_bytes()


def test_the_three_marks_differ_in_fill_and_hatch():
    with mpl.rc_context(style.RC):
        marks = {
            origin: mpl.patches.Patch(**style.mark(origin, style.RED))
            for origin in ("measured", "modelled", "published")
        }
    seen = {(p.get_facecolor(), p.get_hatch()) for p in marks.values()}
    assert len(seen) == 3
    assert marks["measured"].get_facecolor() == to_rgba(style.RED)
    assert marks["published"].get_facecolor() == to_rgba("white")
    assert marks["published"].get_hatch() is None
    assert marks["modelled"].get_hatch() == "////"


def test_series_of_one_figure_never_share_a_colour():
    names = ["COMET-W4Ax", "COMET", "comet-w4ax", "unknown", "cublas-bf16"]
    assert len(set(style.colours(names).values())) == len(names)


def test_an_unknown_figure_is_one_clear_line(paper):
    with pytest.raises(UserError, match="no figure 'fig99'; choose from fig3"):
        draw("fig99", FigureInputs([], paper))


def test_a_missing_published_table_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match=r"fig9_kernel_speedup\.csv is missing"):
        draw("fig9", FigureInputs([], tmp_path))


def test_a_spec_selects_its_own_records():
    assert {r["backend"] for r in FIGURES["fig13"].rows(EVERYTHING)} == {"comet-w4ax"}
    assert len(FIGURES["table2"].rows(EVERYTHING)) == len(synthetic.zero_shot())
    assert len(FIGURES["table1"].rows(EVERYTHING)) == len(synthetic.PPL)
