# SPDX-License-Identifier: Apache-2.0
"""A whole run on tiny inputs: what it leaves behind, and that a second one does nothing."""

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

from comet.measurements import REPOSITORY, read_records


def test_every_record_is_valid_and_says_where_it_comes_from(finished):
    accuracy = read_records(finished.path("accuracy.jsonl"))
    assert sorted(record.backend for record in accuracy) == ["fmpq-w4ax", "w16a16"]
    for record in accuracy + read_records(finished.path("quantize.jsonl")):
        assert record.status == "ok"
        assert record.provenance["config"]["accuracy"]["models"] == ["tiny"]
        assert record.provenance["seed"] == 0
        assert record.provenance["command"].startswith("snakemake results/local-tiny/")
        assert record.environment["versions"]["torch"]


def test_figures_and_report_are_whole(finished):
    assert ET.parse(finished.path("figures", "table1.svg")).getroot().tag.endswith("svg")
    assert finished.path("figures", "table1.png").read_bytes().startswith(b"\x89PNG")
    page = finished.path("report.html").read_text(encoding="utf-8")
    assert "random LLaMA" in page
    assert "local-tiny" in page


def test_each_job_has_its_own_log_and_nothing_half_written(finished):
    logs = list((finished.directory / "logs").rglob("*.log"))
    assert len(logs) >= 8
    assert not list(finished.directory.rglob("*.part"))


def test_a_second_run_does_nothing(finished):
    assert "Nothing to be done" in finished.run("report")


def test_records_of_the_target_memory_are_joined_and_never_made_on_the_way(finished):
    apart = finished.path("records", "memory", "random-llama-2-7b.jsonl")
    apart.parent.mkdir()
    record = finished.records("quantize")[0]
    record["case"] = {"model": "random-llama-2-7b", "layer": "all", "method": "fmpq"}
    apart.write_text(json.dumps(record) + "\n", encoding="utf-8")
    os.utime(apart, (0, 0))
    try:
        assert "rule measure_memory" not in finished.run("report", options=("--dry-run",))
        finished.run(str(finished.path("quantize.jsonl").relative_to(finished.directory)))
        assert record["case"] in [row["case"] for row in finished.records("quantize")]
    finally:
        apart.unlink()
        finished.run("report")


def test_an_engine_profiled_here_is_in_the_report(finished):
    kept = Path(REPOSITORY, "results", "h200", "serving-profile.jsonl")
    own = finished.path("serving-profile.jsonl")
    own.write_text(kept.read_text(encoding="utf-8").replace("LLaMA-3-8B", "profiled-here"))
    try:
        finished.run("report")
        page = finished.path("report.html").read_text(encoding="utf-8")
        assert "vllm-comet, profiled-here, 256 requests" in page
    finally:
        own.unlink()
        finished.run("report")


def test_a_changed_setting_reruns_what_depends_on_it(finished, inputs):
    changed = inputs.config | {"fmpq": {"int8_share": 0.5}}
    finished.configure(changed)
    try:
        plan = finished.run("report", options=("--dry-run",))
    finally:
        finished.configure(inputs.config)
    assert "rule quantize_model" in plan
    assert "fmpq-w4ax" in plan
    assert "rule prepare_model" not in plan
    assert "-w16a16-" not in plan.split("localrule gather")[0].split("rule gather")[0]


def test_the_built_in_report_is_made(finished):
    finished.run("report", options=("--report", "report.zip"))
    assert (finished.directory / "report.zip").stat().st_size > 100_000


def test_layers_of_the_checkpoint_are_described(finished):
    layers = finished.path("quantized", "tiny", "fmpq", "layers.json")
    assert json.loads(layers.read_text(encoding="utf-8"))["model"] == "tiny"
