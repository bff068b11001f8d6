# SPDX-License-Identifier: Apache-2.0
"""Attention and profile on a machine without a GPU: reasons, computed memory, reference figures."""

import copy
import json

from runner import Workflow

LAYER = {"models": ["LLaMA-3-8B"], "layers": ["o"], "m": [16], "backends": ["cublas-bf16"]}
FIGURES = ("attention_speed", "kv_memory", "sm_utilisation")


def test_kernel_targets_without_a_gpu(tmp_path, inputs):
    reference = tmp_path / "h200"
    reference.mkdir()
    config = copy.deepcopy(inputs.config) | {
        "references": [str(reference)],
        "attention": {"models": ["llama3-8b"], "backends": ["comet-kv4", "sdpa-bf16"]},
        "profile": LAYER,
        "figures": list(FIGURES),
    }
    workflow = Workflow(tmp_path / "run", config)
    library = workflow.directory / "build" / "kernels"
    library.mkdir(parents=True)
    for name in ("libcomet_kernels.so", "build.json"):
        (library / name).write_text("{}", encoding="utf-8")
    workflow.run("attention", "profile")
    attention, profile = workflow.records("attention"), workflow.records("profile")
    times = [r for r in attention if r["metric"] == "time"]
    assert len(times) == 36 and {r["status"] for r in times} == {"skipped"}
    memory = [r for r in attention if r["metric"] == "kv_bytes_per_token"]
    assert {(r["origin"], r["status"]) for r in memory} == {("modelled", "ok")}
    assert [r["metric"] for r in profile] == ["power", "tensor_pipe_utilisation"]
    assert all("GPU" in r["reason"] for r in profile)
    assert "Nothing to be done" in workflow.run("attention", "profile")

    measured = {"status": "ok", "reason": None, "samples": [42.0], "median": 42.0}
    measured["environment"] = {"device": "NVIDIA Reference"}
    row = json.dumps(profile[1] | measured) + "\n"
    (reference / "profile.jsonl").write_text(row, encoding="utf-8")
    workflow.run(*FIGURES)
    picture = workflow.path("figures", "sm_utilisation.svg").read_text(encoding="utf-8")
    assert "NVIDIA Reference, reference run" in picture
    assert "not measured" in workflow.path("figures", "attention_speed.svg").read_text()
    assert "Memory of the KV cache" in workflow.path("figures", "kv_memory.svg").read_text()
