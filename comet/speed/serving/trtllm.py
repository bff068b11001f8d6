# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's end-to-end throughput, by its own ``trtllm-bench`` in its own environment.

``COMET_TRTLLM_BENCH`` names the program. A model without weights is served with random ones (the
PyTorch backend's ``load_format: dummy``). SmoothQuant W8A8 exists as a TensorRT engine only: its
user builds it and puts it into the folder that ``COMET_TRTLLM_ENGINES`` names, as
``<model>-<engine>`` such as ``LLaMA-3-8B-trtllm-w8a8``. What the program reports is documented with
it (``trtllm-bench throughput --report_json``).
"""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from comet import hints
from comet.files import write_json, write_json_lines, write_text
from comet.models.random_weights import plain_tokenizer
from comet.models.shapes import shapes_of
from comet.speed.backends import Unavailable
from comet.speed.serving.cases import MOST, Load, ServingJob
from comet.speed.serving.models import write_model_folder

PROGRAM = "COMET_TRTLLM_BENCH"
ENGINES = "COMET_TRTLLM_ENGINES"
KV_SHARE = 0.92
SECONDS_A_LOAD = 1800
QUANTIZED = {"trtllm-w4a16": {"quant_algo": "W4A16_AWQ", "group_size": 128}}


def serve(
    job: ServingJob, seed: int, repeats: int, _profile: bool = False, _total: float | None = None
) -> dict:
    """Serve a job's loads; the same form as a vLLM worker's response.

    Raises:
        Unavailable: the program or the engine is not here.
    """
    program = _program()
    if job.memory_cap is not None:
        raise Unavailable("trtllm-bench has no memory cap; serve it on a GPU of that size")
    results, engine = [], {}
    with tempfile.TemporaryDirectory(prefix="comet-trtllm-") as scratch:
        arguments = _model_arguments(job, Path(scratch))
        for load in job.loads:
            try:
                reports = [
                    _bench(program, arguments, job, load, Path(scratch), seed + repeat)
                    for repeat in range(repeats)
                ]
                results.append(vars(load) | read_reports(reports, load))
                engine = reports[0].get("engine", {})
            except (Unavailable, ValueError) as error:
                results.append(vars(load) | {"error": str(error)})
    versions = {"tensorrt_llm": engine.get("version")}
    facts = {"kv_cache_tokens": None, **engine}
    return {"device": _device(), "versions": versions, "engine": facts, "results": results}


def _program() -> str:
    named = os.environ.get(PROGRAM) or "trtllm-bench"
    if not shutil.which(named):
        raise Unavailable(f"TensorRT-LLM not found ({named}); {hints.TENSORRT_LLM_BENCH}")
    return named


def _device() -> str:
    from comet.speed import capability

    return capability.detect()["gpu"] or "unknown"


def _model_arguments(job: ServingJob, folder: Path) -> list[str]:
    """How the program finds the model: an engine where there is one, else random weights."""
    kept = os.environ.get(ENGINES)
    engine = Path(kept, f"{job.model}-{job.engine}") if kept else None
    context = max(load.input_tokens + load.output_tokens for load in job.loads)
    write_model_folder(folder, job.model, None, context)
    plain_tokenizer().save_pretrained(folder)
    if engine and engine.is_dir():
        return ["--engine_dir", str(engine), "--backend", "tensorrt"]
    if job.engine == "trtllm-w8a8":
        raise Unavailable(
            f"SmoothQuant needs a TensorRT engine; build one and set {ENGINES} to the folder that "
            f"holds it as {job.model}-{job.engine}"
        )
    if job.engine in QUANTIZED:
        facts = {"quantization": QUANTIZED[job.engine]}
        write_json(folder / "hf_quant_config.json", facts)
    write_text(folder / "options.yaml", "load_format: dummy\n")
    return ["--backend", "pytorch", "--extra_llm_api_options", str(folder / "options.yaml")]


def write_dataset(path: Path, load: Load, vocabulary: int, seed: int) -> int:
    """The program's data set: one request a line, by token ids; returns how many.

    Raises:
        Unavailable: the load asks for as many requests as fit, which the program does not tell.
    """
    if load.requests == MOST:
        raise Unavailable("trtllm-bench does not tell how many requests fit; name a number")
    draw = random.Random(seed)
    rows = [
        {
            "task_id": task,
            "input_ids": [draw.randrange(10, vocabulary - 10) for _ in range(load.input_tokens)],
            "output_tokens": load.output_tokens,
        }
        for task in range(load.requests)
    ]
    write_json_lines(path, rows)
    return len(rows)


def _bench(
    program: str, arguments: list[str], job: ServingJob, load: Load, folder: Path, seed: int
) -> dict:
    dataset, report = folder / "dataset.jsonl", folder / "report.json"
    count = write_dataset(dataset, load, shapes_of(job.model).vocab, seed)
    report.unlink(missing_ok=True)
    command = [
        program, "--model", job.model, "--model_path", str(folder), "--workspace", str(folder),
        "throughput", "--dataset", str(dataset), "--num_requests", str(count),
        "--max_batch_size", str(count), "--kv_cache_free_gpu_mem_fraction", str(KV_SHARE),
        "--report_json", str(report), *arguments,
    ]  # fmt: skip
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_A_LOAD)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{program} did not end in {SECONDS_A_LOAD} s") from None
    sys.stderr.write(run.stderr)
    if not report.is_file():
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{program} ended with {run.returncode} and no report: {last}")
    return json.loads(report.read_text(encoding="utf-8"))


def read_reports(reports: list[dict], load: Load) -> dict:
    """Requests, tokens and seconds of repeated runs, checked against the load.

    Raises:
        ValueError: a report of something else, or of another format.
    """
    seconds = []
    for report in reports:
        try:
            served = report["request_info"]["num_requests"]
            length = report["request_info"]["avg_output_length"]
            took = report["performance"]["total_latency_ms"] / 1000
            rate = report["performance"]["system_output_throughput_tok_s"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"the report of trtllm-bench is not one ({error!r})") from None
        if served != load.requests or not math.isclose(length, load.output_tokens, rel_tol=1e-3):
            raise ValueError(f"trtllm-bench served {served} requests of {length} output tokens")
        if not took > 0 or not math.isclose(rate * took, served * length, rel_tol=0.02):
            raise ValueError(f"the report contradicts itself: {rate} tokens/s for {took} s")
        seconds.append(took)
    generated = load.requests * load.output_tokens
    return {"served": load.requests, "seconds": seconds, "generated": generated}
