# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML file that needs no network."""

import base64
import json
from pathlib import Path

import jinja2

from comet.figures import FigureSpec
from comet.figures.published import rows as published_rows
from comet.files import write_text
from comet.report import tables
from comet.report.attention import attention_summary
from comet.report.contradictions import CONTRADICTIONS
from comet.report.gemm import gemm_summary
from comet.report.protocol import protocol_summary
from comet.report.rivals import rival_summary
from comet.report.serving import serving_summary
from comet.report.serving_profile import profile_summary

MOST_ROWS = 400


def render(
    out_html: Path | str,
    figures: dict[str, Path],
    specs: dict[str, FigureSpec],
    records: list[dict],
    reference_records: list[dict],
    context: dict,
) -> None:
    """Write the report atomically.

    Args:
        out_html: where.
        figures: figure name -> SVG file; a figure without a file is named as not drawn.
        specs: figure name -> what it is, in the order of the report.
        records: measurements of this run, as dictionaries.
        reference_records: measurements of the committed reference runs.
        context: all optional: ``labels`` (model or data set id -> label), ``config_name``,
            ``config`` (the resolved configuration), ``machine``, ``commit``, ``date``, ``paper``
            (folder of the published tables), ``choices`` (rows with option, values, perplexity),
            ``profiles`` (records of profiled engines).

    Raises:
        UserError: the file cannot be written, or a published table is missing.
    """
    labels = context.get("labels", {})
    paper = context.get("paper")
    page = {
        "front": _front(records, reference_records, context),
        "sections": [
            _section(specs[name], figures.get(name), records, reference_records, labels, paper)
            for name in specs
        ],
        "columns": tables.COLUMNS,
        "gemm": gemm_summary(records, reference_records),
        "attention": attention_summary(records, reference_records),
        "serving": serving_summary(records, reference_records),
        "serving_profile": profile_summary(context.get("profiles", [])),
        "rivals": rival_summary(records, reference_records),
        "protocol": protocol_summary(records, reference_records, paper),
        "skipped": tables.skipped_rows(records, labels),
        "contradictions": CONTRADICTIONS,
        "claims": _claims(paper),
        "choices": context.get("choices", []),
        "runs": tables.runs(records),
        "reference_runs": tables.runs(reference_records),
        "config": json.dumps(context.get("config", {}), indent=2, default=str),
        "labels": labels,
    }
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    loader = jinja2.Environment(
        loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    write_text(out_html, loader.get_template("template.html.j2").render(page))


def _front(records: list[dict], reference: list[dict], context: dict) -> list[tuple[str, str]]:
    here, there = tables.origins(records), tables.origins(reference)
    missing = sum(record["status"] != "ok" for record in records)
    starts = [r["provenance"]["start"] for r in records if r["provenance"].get("start")]
    commits = sorted({r["provenance"].get("commit") or "unknown" for r in records})
    devices = ", ".join(tables.devices(records)) or "nothing measured"
    return [
        ("Machine", context.get("machine", "unknown")),
        ("Commit", context.get("commit") or ", ".join(commits) or "unknown"),
        ("Date", context.get("date") or (min(starts) if starts else "unknown")),
        ("Configuration", context.get("config_name", "unknown")),
        ("Measured here", f"{here.get('measured', 0)} numbers, on: {devices}"),
        ("Modelled here", f"{here.get('modelled', 0)} numbers"),
        ("Skipped or failed here", f"{missing} records, reasons below"),
        (
            "Reference runs",
            f"{there.get('measured', 0)} numbers that came with the repository, on: "
            f"{', '.join(tables.devices(reference)) or 'none'}",
        ),
        ("Published", "the COMET paper (ASPLOS 2025, CC BY 4.0), transcribed; not measured here"),
    ]


def _section(
    spec: FigureSpec,
    svg: Path | None,
    records: list[dict],
    reference: list[dict],
    labels: dict[str, str],
    paper: Path | None,
) -> dict:
    rows = tables.record_rows(spec.rows(records), "this run", labels)
    rows += tables.record_rows(spec.rows(reference), "reference run", labels)
    published = []
    for name in spec.paper_files if paper else ():
        table = published_rows(paper, name)
        published.append({"name": name, "columns": list(table[0]), "rows": table})
    return {
        "spec": spec,
        "image": _data_uri(Path(svg)) if svg else None,
        "rows": rows[:MOST_ROWS],
        "more": max(0, len(rows) - MOST_ROWS),
        "published": published,
    }


def _data_uri(svg: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.read_bytes()).decode("ascii")


def _claims(paper: Path | None) -> list[dict]:
    return [row for row in published_rows(paper, "claims.csv") if row["notes"]] if paper else []
