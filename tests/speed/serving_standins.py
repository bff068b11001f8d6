# SPDX-License-Identifier: Apache-2.0
"""A machine with a GPU, and a program that answers as vLLM's worker does."""

import stat
import sys
from pathlib import Path

from comet.speed.serving.cases import Load, ServingJob

LOADS = (Load(1024, 512, 64), Load(128, 128, "max"))
JOB = ServingJob("LLaMA-3-8B", "vllm-comet", LOADS)
GPU = {
    "gpu": "NVIDIA H200",
    "gpu_memory_bytes": 150e9,
    "driver": "580",
    "gpu_missing": None,
    "engines": {},
}
WORKER = """
import json, os, sys
request = json.load(open(sys.argv[-2]))
served = [load["requests"] if load["requests"] != "max" else 300 for load in request["loads"]]
results = [
    load | {"served": n, "seconds": [2.0, 4.0], "generated": n * load["output_tokens"]}
    for load, n in zip(request["loads"], served)
]
config = json.load(open(request["folder"] + "/config.json"))
packed = 128 if "quantization_config" in config else 0
drawn = {"norms": 65, "packed": packed, "packed_bytes": packed << 24, "zero_bytes": packed << 24}
json.dump(drawn, open(os.environ["COMET_SERVING_WEIGHTS"], "w"))
response = {
    "format": 1, "device": "NVIDIA H200", "versions": {"vllm": "0.24.0"},
    "engine": {"kv_cache_tokens": 1000000, "asked": request}, "results": results,
}
"""


def program(path: Path, body: str) -> str:
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def by_metric(records, metric):
    return [record for record in records if record.metric == metric]
