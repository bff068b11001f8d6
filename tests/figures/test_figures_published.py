# SPDX-License-Identifier: Apache-2.0
"""Published figures show exactly what the tables hold."""

import pytest

from comet.figures import FigureInputs, bars, draw, published, style


def heights(axes) -> list[float]:
    return sorted(round(patch.get_height(), 6) for patch in axes.patches)


def column(rows: list[dict], name: str) -> list[float]:
    return sorted(float(row[name]) for row in rows if row[name])


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_fig9_has_one_bar_a_row_and_its_geomeans(paper):
    figure = draw("fig9", FigureInputs([], paper))
    rows = published.rows(paper, "fig9_kernel_speedup.csv")
    means = published.rows(paper, "fig9_means.csv")
    assert len(figure.axes) == 6
    for axes, batch in zip(figure.axes, ("2", "4", "8", "16", "64", "256"), strict=True):
        assert axes.get_ylabel() == f"batch {batch}"
        expected = column([r for r in rows if r["batch"] == batch], "speedup")
        bar_means = [r for r in means if (r["batch"], r["mean_kind"]) == (batch, "GeoMean bar")]
        assert len(bar_means) == 3
        assert heights(axes) == sorted(expected + column(bar_means, "value"))
    assert texts(figure.axes[3]).count("missing") == 3


def test_fig9_marks_lower_bounds_by_an_arrow(paper):
    figure = draw("fig9", FigureInputs([], paper))
    arrows = [sum(t.arrow_patch is not None for t in axes.texts) for axes in figure.axes]
    assert arrows == [0, 0, 1, 1, 0, 2]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fig10", "fig10_throughput.csv"),
        ("fig12", "fig12_fixed_batch.csv"),
        ("fig15", "fig15_e2e_ablation.csv"),
    ],
)
def test_end_to_end_panels_show_every_bar_and_say_oom(name, file, paper):
    figure = draw(name, FigureInputs([], paper))
    rows = [r for r in published.rows(paper, file) if r["source"] != "repository"]
    for axes, lengths in zip(figure.axes, (("1024", "512"), ("128", "128")), strict=True):
        panel = [r for r in rows if (r["input_len"], r["output_len"]) == lengths]
        assert heights(axes) == column(panel, "relative_throughput")
        assert texts(axes).count("OOM") == sum(r["status"] == "OOM" for r in panel) == 2


def test_fig11_shows_the_digitised_series(paper):
    (axes,) = draw("fig11", FigureInputs([], paper)).axes
    rows = published.rows(paper, "fig11_batch_sweep.csv")
    assert heights(axes) == column([r for r in rows if r["source"] == "digitised"], "value")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["4", "8", "16", "32", "64"]


@pytest.mark.parametrize(
    ("name", "file", "value"),
    [
        ("fig13", "fig13_kernel_ablation.csv", "normalised_latency"),
        ("fig14", "fig14_sm_scheduling.csv", "value"),
    ],
)
def test_ablations_show_every_bar_of_each_model(name, file, value, paper):
    figure = draw(name, FigureInputs([], paper))
    rows = published.rows(paper, file)
    for axes, model in zip(figure.axes, ("LLaMA-3-8B", "LLaMA-3-70B"), strict=True):
        assert axes.get_title(loc="left") == model
        assert heights(axes) == column([r for r in rows if r["model"] == model], value)


def test_fig14_says_that_the_oracle_is_missing(paper):
    figure = draw("fig14", FigureInputs([], paper))
    assert "oracle" in figure.get_supxlabel()


def test_tables_show_every_cell(paper):
    for name, file, value, form in (
        ("table1", "table1_perplexity.csv", "ppl", ".2f"),
        ("table2", "table2_zeroshot.csv", "value", ".1f"),
    ):
        figure = draw(name, FigureInputs([], paper))
        words = [text.split(" $")[0] for axes in figure.axes for text in texts(axes)]
        drawn = sorted(float(word) for word in words if word.replace(".", "").isdigit())
        cells = [float(f"{cell:{form}}") for cell in column(published.rows(paper, file), value)]
        assert drawn == cells


def test_table1_marks_the_traps_of_the_paper(paper):
    figure = draw("table1", FigureInputs([], paper))
    cells = texts(figure.axes[0])
    assert {"5.12 $^a$", "4.57 $^a$", "3.12 $^a$", "6.15 $^b$", "6.89 $^c$"} <= set(cells)
    assert "6.14" in cells and "5.19" in cells
    notes = figure.get_supxlabel()
    assert "a: value at context 4096" in notes and "b: one scale for a whole output" in notes
    assert "68.6 $^e$" in texts(draw("table2", FigureInputs([], paper)).axes[0])


def test_published_kv4_loss_is_the_difference_of_two_rows(paper):
    (axes,) = draw("kv4_loss", FigureInputs([], paper)).axes
    labels = [t.get_text() for t in axes.get_xticklabels()]
    by_model = dict(zip(labels, (p.get_height() for p in axes.patches), strict=True))
    assert by_model["Qwen2-72B"] == pytest.approx(0.12)
    assert by_model["LLaMA-2-7B"] == pytest.approx(0.02)
    assert len(by_model) == 11


def test_every_published_bar_is_hollow(paper):
    for name in ("fig9", "fig10", "fig13", "table1"):
        for axes in draw(name, FigureInputs([], paper)).axes:
            assert {p.get_facecolor() for p in axes.patches} == {(1.0, 1.0, 1.0, 1.0)}


def test_a_bar_beyond_the_ceiling_says_so():
    with style.context():
        axes = style.new_figure(2).subplots()
        drawn = {("g", "a"): bars.Bar(10.0), ("g", "b"): bars.Bar(90.0)}
        colour = style.colours(["a", "b"])
        bars.grouped_bars(axes, ["g"], ["a", "b"], drawn, colour, values=".0f", ceiling=40)
    assert axes.get_ylim() == (0, 40)
    assert texts(axes) == ["10", "90 \u2191"]
    assert heights(axes) == [10, 90]
