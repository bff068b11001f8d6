# SPDX-License-Identifier: Apache-2.0
"""Skipped is not for ever, and a machine without a GPU shows the committed reference run."""

import copy
import json
from pathlib import Path

from runner import Workflow

FAKES = Path(__file__).resolve().parents[1] / "fakes"


def with_gemm(inputs) -> dict:
    config = copy.deepcopy(inputs.config)
    config["gemm"] = {
        "models": ["LLaMA-3-8B"],
        "m": [16],
        "backends": ["comet-w4ax", "cublas-bf16"],
    }
    config["figures"] = ["fig9"]
    return config


def pretend_library(workflow) -> None:
    """A finished build, so that no compiler has to run."""
    folder = workflow.directory / "build" / "kernels"
    folder.mkdir(parents=True)
    for name in ("libcomet_kernels.so", "build.json"):
        (folder / name).write_text("{}", encoding="utf-8")


def test_a_skipped_record_is_measured_again_when_a_gpu_appears(tmp_path, inputs):
    machine = tmp_path / "nvml.json"
    machine.write_text('{"gpus": [{"uuid": "GPU-a"}]}', encoding="utf-8")
    workflow = Workflow(tmp_path / "run", with_gemm(inputs))
    pretend_library(workflow)
    target = "results/local-tiny/gemm.jsonl"
    workflow.run(target)
    records = workflow.records("gemm")
    assert len(records) == 8
    assert {record["status"] for record in records} == {"skipped"}
    assert all("GPU" in record["reason"] for record in records)
    assert "Nothing to be done" in workflow.run(target)
    workflow.environment |= {"PYTHONPATH": str(FAKES), "FAKE_NVML": str(machine)}
    plan = workflow.run(target, options=("--dry-run",))
    assert "rule measure_gemm" in plan
    assert "Params have changed" in plan


def test_figures_show_the_reference_run_where_there_is_no_gpu(tmp_path, inputs):
    reference = tmp_path / "h200"
    reference.mkdir()
    config = with_gemm(inputs) | {"references": [str(reference)]}
    workflow = Workflow(tmp_path / "run", config)
    pretend_library(workflow)
    workflow.run("results/local-tiny/gemm.jsonl")
    rows = [
        record
        | {
            "status": "ok",
            "reason": None,
            "samples": [10.0 + 10.0 * (record["backend"] == "cublas-bf16")],
            "median": 10.0 + 10.0 * (record["backend"] == "cublas-bf16"),
            "environment": {"device": "NVIDIA Reference"},
        }
        for record in workflow.records("gemm")
    ]
    for row in rows:
        row["provenance"] = row["provenance"] | {"run_id": "reference"}
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (reference / "gemm.jsonl").write_text(lines, encoding="utf-8")
    workflow.run("fig9")
    picture = workflow.path("figures", "fig9.svg").read_text(encoding="utf-8")
    assert "NVIDIA Reference, reference run" in picture
    assert "not measured" in picture
