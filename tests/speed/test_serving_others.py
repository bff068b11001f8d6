# SPDX-License-Identifier: Apache-2.0
"""Throughput measured by others' programs: trtllm-bench, and tables of recorded numbers."""

import json

import pytest
from serving_standins import GPU, LOADS, by_metric, program

from comet.errors import UserError
from comet.speed import capability
from comet.speed.backends import Unavailable
from comet.speed.serving import engines, trtllm
from comet.speed.serving.cases import ServingJob
from comet.speed.serving.recorded import recorded
from comet.speed.serving.records import serving_records

REPORT = {
    "engine": {"version": "1.2.0", "backend": "Pytorch"},
    "request_info": {"num_requests": 64, "avg_input_length": 1024.0, "avg_output_length": 512.0},
    "performance": {"total_latency_ms": 5000.0, "system_output_throughput_tok_s": 6553.6},
}
BENCH = """
import json, sys
arguments = sys.argv
rows = [json.loads(line) for line in open(arguments[arguments.index("--dataset") + 1])]
assert len(rows) == int(arguments[arguments.index("--num_requests") + 1])
assert all(len(r["input_ids"]) == 1024 and r["output_tokens"] == 512 for r in rows)
options = arguments[arguments.index("--extra_llm_api_options") + 1]
assert "load_format: dummy" in open(options).read()
report = %s
json.dump(report, open(arguments[arguments.index("--report_json") + 1], "w"))
"""


def test_trtllm_bench_is_given_the_load_and_its_report_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(capability, "detect", lambda: GPU)
    bench = program(tmp_path / "trtllm-bench", BENCH % repr(REPORT))
    monkeypatch.setenv(trtllm.PROGRAM, bench)
    job = ServingJob("LLaMA-3-8B", "trtllm-w4a16", LOADS)
    records = serving_records([job], {}, 0, repeats=2)
    measured, unknown = by_metric(records, "tokens_per_s")
    assert measured.samples == [64 * 512 / 5.0] * 2
    assert measured.method["engine"]["version"] == "1.2.0"
    assert "not looked at" in measured.method["weights"]
    assert "does not tell how many requests fit" in unknown.reason
    (cache,) = by_metric(records, "kv_cache_tokens")
    assert cache.status == "skipped"
    (smooth, _) = serving_records([ServingJob("LLaMA-3-8B", "trtllm-w8a8", LOADS)], {}, 0)
    assert "SmoothQuant needs a TensorRT engine" in smooth.reason


@pytest.mark.parametrize(
    "path, value, said",
    [
        (("request_info", "num_requests"), 63, "served 63 requests"),
        (("performance", "system_output_throughput_tok_s"), 9000.0, "contradicts itself"),
        (("performance", "total_latency_ms"), None, "is not one .TypeError"),
    ],
)
def test_reports_of_something_else_are_refused(path, value, said):
    report = json.loads(json.dumps(REPORT))
    report[path[0]][path[1]] = value
    with pytest.raises(ValueError, match=said):
        trtllm.read_reports([report], LOADS[0])


def test_recorded_numbers_are_published_ones(tmp_path):
    table = tmp_path / "others.csv"
    table.write_text(
        "model,engine,input_tokens,output_tokens,requests,tokens_per_s,source\n"
        "LLaMA-3-8B,qserve,1024,512,64,3000.5,own run on an A100\n"
    )
    (record,) = recorded(table, {}, 0)
    assert (record.origin, record.samples) == ("published", [3000.5])
    table.write_text(table.read_text() + "LLaMA-3-8B,qserve,1024,512,64,fast,me\n")
    with pytest.raises(UserError, match="others.csv:3 is not a recorded throughput"):
        recorded(table, {}, 0)
    table.write_text("model,engine\n")
    with pytest.raises(UserError, match="lacks the column input_tokens"):
        recorded(table, {}, 0)


def test_a_python_that_is_none_is_one_line(monkeypatch):
    monkeypatch.setenv(engines.PYTHON, "/nowhere/python")
    with pytest.raises(Unavailable, match="is no program"):
        engines.vllm_python()
