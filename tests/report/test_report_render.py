# SPDX-License-Identifier: Apache-2.0
"""The report holds its figures, numbers, gaps and contradictions in one file."""

import base64
import re
from html.parser import HTMLParser

import pytest
import report_inputs as made

from comet.errors import UserError
from comet.figures import FIGURES
from comet.report import render


class Reader(HTMLParser):
    """Collects attributes by tag, ids, and the text of each section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.sections: dict[str, str] = {}
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "section":
            self._section = values["id"]

    def handle_data(self, data):
        self.sections[self._section] = self.sections.get(self._section, "") + data


@pytest.fixture(scope="module")
def page(report) -> Reader:
    return Reader(report.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_elsewhere(page, report):
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), value
    assert "@import" not in report.read_text()
    assert not re.search(r"url\(", report.read_text())


def test_contents_link_to_every_section(page):
    ids = [a["id"] for tag, a in page.tags if tag == "section"]
    links = [a["href"][1:] for tag, a in page.tags if tag == "a"]
    assert links == ids
    assert set(made.NAMES) < set(ids)


def test_figures_are_inside_byte_for_byte(page, figures):
    images = {a["alt"]: a["src"] for tag, a in page.tags if tag == "img"}
    for name, svg in figures.items():
        data = images[FIGURES[name].title].removeprefix("data:image/svg+xml;base64,")
        assert base64.b64decode(data) == svg.read_bytes()


def test_a_figure_that_was_not_drawn_says_so(page):
    assert "Not drawn in this run." in page.sections["fig3"]


def test_front_matter_says_what_was_measured_where(page):
    front = page.sections["front"]
    assert "2 numbers, on: cpu" in front
    assert "1 numbers that came with the repository, on: Reference GPU" in front
    assert "0123abc" in front and "2026-01-02T03:04:05" in front and "test.yaml" in front
    assert "transcribed; not measured here" in front


def test_tables_carry_labels_values_status_and_run(page):
    table = page.sections["table1"]
    assert "Tiny model (weights published in 4 bit) (tiny)" in table
    assert "A text (text)" in table
    assert "30.25" in table and "fmpq-w4ax" in table
    assert "this run" in table and "reference run" in page.sections["fig14"]
    assert "Published numbers: table1_perplexity.csv, 99 rows" in table


def test_skipped_records_carry_their_reason(page, report):
    assert made.REASON in page.sections["skipped"]
    assert made.REASON in page.sections["fig14"]
    assert "<here>" not in report.read_text()


def test_contradictions_and_choices_are_shown(page):
    against = page.sections["contradictions"]
    for fact in ("4096", "1.52 (OPT-13B)", "14 of 31", "3.06", "0.062", "18"):
        assert fact in against
    assert "41.5" in page.sections["choices"]
    assert "0123abc with local changes" in page.sections["provenance"]


def test_equal_input_gives_equal_bytes(report, figures, records, reference, tmp_path):
    specs = {name: FIGURES[name] for name in (*made.NAMES, "fig3")}
    render(tmp_path / "again.html", figures, specs, records, reference, made.CONTEXT)
    assert (tmp_path / "again.html").read_bytes() == report.read_bytes()


def test_an_empty_run_is_a_report_too(tmp_path):
    render(tmp_path / "report.html", {}, FIGURES, [], [], {})
    page = Reader((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "nothing measured" in page.sections["front"]
    assert "Nothing that this run asked for was skipped" in page.sections["skipped"]
    assert "No comparison was measured in this run." in page.sections["choices"]


def test_long_tables_say_how_much_is_left_out(tmp_path, records):
    render(tmp_path / "report.html", {}, {"table1": FIGURES["table1"]}, records * 300, [], {})
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "200 more rows are in the record files" in text


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        render(tmp_path / "file" / "report.html", {}, {}, [], [], {})
