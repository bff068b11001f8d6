# SPDX-License-Identifier: Apache-2.0
"""Tasks, variants of the KV cache and the protocol audit, as jobs on tiny inputs."""

import json
from pathlib import Path

from runner import WORDS

from comet.measurements import read_records


def write_task(folder: Path) -> None:
    folder.mkdir()
    rows = [
        {"goal": " ".join(WORDS[n : n + 4]), "sol1": WORDS[n + 5], "sol2": WORDS[n], "label": n % 2}
        for n in range(6)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "piqa.jsonl").write_text(text, encoding="utf-8")


def test_a_study_leaves_records_and_figures(workflow, inputs, tmp_path):
    write_task(tmp_path / "tasks")
    accuracy = {"rows": ["w16a16", "w16a16-kv4"], "tasks": ["piqa"], "task_limit": 4}
    workflow.configure(
        inputs.config
        | {
            "accuracy": inputs.config["accuracy"]
            | accuracy
            | {"task_models": ["tiny"]}
            | {"task_rows": ["w16a16", "w16a16-kv4"], "windows": "all"},
            "tasks": {"source": {"kind": "folder", "path": str(tmp_path / "tasks")}},
            "kv_cache": {"models": ["tiny"], "sets": ["bits"], "contexts": [64], "tokens": 64},
            "protocol": {"models": ["tiny"], "rows": ["w16a16"], "contexts": [32], "tokens": 128},
            "figures": ["table2", "kv4_loss"],
        }
    )
    workflow.run("table2", "kv4_loss", "results/local-tiny/protocol.jsonl")
    records = read_records(workflow.path("accuracy.jsonl"))
    assert {record.metric for record in records} == {"acc", "acc_norm", "ppl_token_64"}
    assert all(record.status == "ok" for record in records)
    tasks = [record for record in records if record.case["task"]]
    assert len(tasks) == 4 and {record.case["limit"] for record in tasks} == {4}
    texts = [record for record in records if record.metric == "ppl_token_64"]
    assert all(len(record.method["window_losses"]) > 2 for record in texts)
    assert len(read_records(workflow.path("kvcache.jsonl"))) == 10
    ways = {
        record.case["protocol"]["choice"]
        for record in read_records(workflow.path("protocol.jsonl"))
    }
    assert {"usual", "context", "overlap", "joiner"} <= ways
    for name in ("table2", "kv4_loss"):
        assert workflow.path("figures", f"{name}.svg").is_file()
    assert "Nothing to be done" in workflow.run("table2", "kv4_loss")


def test_rows_that_weigh_tokens_share_their_weights(workflow, inputs):
    rows = ["fmpq-w4a16", "gptq-w4a16"]
    accuracy = inputs.config["accuracy"] | {"rows": rows, "tasks": []}
    settings = {"fmpq": {"end_loss": True}, "methods": {"gptq-w4a16": {"end_loss": True}}}
    workflow.configure(inputs.config | {"accuracy": accuracy, "figures": ["table1"]} | settings)
    said = workflow.run("results/local-tiny/accuracy.jsonl")
    assert said.count("rule weigh_tokens:") == 1
    records = {r.backend: r for r in read_records(workflow.path("accuracy.jsonl"))}
    assert set(records) == set(rows) and all(r.status == "ok" for r in records.values())
    assert "end_loss=True" in records["gptq-w4a16"].method["quantizer"]["settings"]
    assert not list(workflow.path("token_weights").glob("*"))
    assert "Nothing to be done" in workflow.run("results/local-tiny/accuracy.jsonl")
