# SPDX-License-Identifier: Apache-2.0
"""Small made-up records for figure and report tests; no number here was measured."""

import math

from comet.measurements import Measurement, skipped

ENVIRONMENT = {"device": "Test GPU", "python": "3.11", "versions": {"torch": "2.13.0"}}
PROVENANCE = {
    "commit": "0123abc",
    "dirty": False,
    "seed": 0,
    "start": "2026-01-01T00:00:00+00:00",
    "run_id": "run",
}
REASON = "no NVIDIA GPU; run on a machine with one"
PPL = {
    "w16a16": 20.0,
    "w16a16-kv4": 20.5,
    "fmpq-w4a4": 200.0,
    "fmpq-w4ax": 30.0,
    "fmpq-w4axkv4": 31.2,
}


def record(kind: str, case: dict, metric: str, unit: str, backend: str, value: float, **fields):
    """One record as a dictionary."""
    made = {"environment": ENVIRONMENT, "provenance": PROVENANCE} | fields
    return Measurement(kind, case, metric, unit, backend, [value], **made).as_dict()


def skip(kind: str, case: dict, metric: str, backend: str) -> dict:
    """One skipped record as a dictionary."""
    made = {"environment": ENVIRONMENT, "provenance": PROVENANCE}
    return skipped(kind, case, metric, "us", backend, REASON, **made).as_dict()


def accuracy(model: str = "tiny", dataset: str = "text") -> list[dict]:
    """One perplexity for each backend of ``PPL``."""
    case = {"model": model, "dataset": dataset, "split": "test", "context": 64, "windows": "0-1"}
    found = []
    for backend, value in PPL.items():
        sums = [63 * (math.log(value) + shift) for shift in (0.01, -0.01)]
        method = {"row": backend.upper(), "window_losses": sums}
        found.append(record("accuracy", case, "ppl_token_64", "1", backend, value, method=method))
    return found


def zero_shot(model: str = "tiny", limit: int | None = 8) -> list[dict]:
    """Two rows on two tasks; PIQA has acc_norm as well."""
    items = {
        ("w16a16", "piqa", "acc"): "11111100",
        ("w16a16", "piqa", "acc_norm"): "11111110",
        ("w16a16", "winogrande", "acc"): "11110000",
        ("fmpq-w4axkv4", "piqa", "acc"): "11110000",
        ("fmpq-w4axkv4", "piqa", "acc_norm"): "11111000",
        ("fmpq-w4axkv4", "winogrande", "acc"): "11100000",
    }
    found = []
    for (backend, task, metric), answers in items.items():
        case = {"model": model, "dataset": task, "task": task, "limit": limit}
        method = {"row": backend.upper(), "items": answers, "stderr": 0.1}
        share = answers.count("1") / 8
        found.append(record("accuracy", case, metric, "1", backend, share, method=method))
    return found


def kv_variants(name: str = "granularity") -> list[dict]:
    """16 bit, the default and one more variant of the KV cache, on two windows."""
    found = []
    for label, value in {
        "16 bit": 20.0,
        "K channel x 64 tokens, V token": 20.5,
        "K token": 22.0,
    }.items():
        case = {
            "model": "tiny",
            "dataset": "text",
            "split": "test",
            "context": 64,
            "windows": "0-1",
            "kv": {"set": name, "variant": label},
        }
        sums = [63 * (math.log(value) + shift) for shift in (0.01, -0.01)]
        method = {"window_losses": sums}
        found.append(
            record("accuracy", case, "ppl_token_64", "1", "w16a16-kv", value, method=method)
        )
    return found


def quantize(layers: int = 3) -> list[dict]:
    """Three shares for each layer."""
    shares = {"int8_block_share": 18.0, "outlier_channel_share": 9.0, "w4a4_mac_share": 88.0}
    return [
        record(
            "quantize",
            {"model": "tiny", "layer": f"model.layers.{i}", "method": "fmpq"},
            metric,
            "%",
            "fmpq",
            value + i,
            method={"calibration": {"dataset": "text"}},
        )
        for i in range(layers)
        for metric, value in shares.items()
    ]


def gemm(m: int = 16, **fields) -> list[dict]:
    """cuBLAS at 30 us, the full W4Ax kernel at 10 us, a slower variant at 15 us, W4A8 at 20 us."""
    shape = {"model": "tiny", "layer": "qkv", "m": m, "n": 512, "k": 256}
    times = [
        ("cublas-bf16", {}, 30.0),
        ("comet-w4ax", {"int4_share": 0.75, "variant": "full"}, 10.0),
        ("comet-w4ax", {"int4_share": 0.75, "variant": "no-pipeline"}, 15.0),
        ("comet-w4a8", {"int4_share": 0.0}, 20.0),
    ]
    return [record("gemm", shape | more, "time", "us", b, t, **fields) for b, more, t in times]


def serving(requests: tuple[int, ...] = (4, 16)) -> list[dict]:
    """W4A16 at 100 tokens/s a request, 16 bit at half of it, COMET at twice."""
    speeds = {"vllm-w4a16": 100.0, "vllm-bf16": 50.0, "vllm-comet": 200.0}
    return [
        record(
            "serving",
            {"model": "tiny", "input_tokens": 8, "output_tokens": 4, "requests": n},
            "tokens_per_s",
            "tokens/s",
            backend,
            speed * n,
        )
        for n in requests
        for backend, speed in speeds.items()
    ]


def profile(**fields) -> list[dict]:
    """A kernel that fills the tensor pipe at m = 256, another that fills DRAM at m = 16."""
    seen = {
        ("comet-w4ax", 16): {"tensor_pipe_utilisation": 8.0, "dram_throughput": 90.0},
        ("cublas-bf16", 256): {"tensor_pipe_utilisation": 95.0, "power": 690.0},
    }
    shape = {"model": "tiny", "layer": "qkv", "n": 512, "k": 256}
    return [
        record("profile", shape | {"m": m}, metric, "percent", backend, value, **fields)
        for (backend, m), values in seen.items()
        for metric, value in values.items()
    ]


def attention(**fields) -> list[dict]:
    """KV4 at 10 us, two 16-bit kernels at 30 and 40 us, in a large case and a small one."""
    times = {"comet-kv4": 10.0, "sdpa-bf16": 40.0, "vllm-fa3-bf16": 30.0}
    heads = {"model": "llama3-8b", "heads": 32, "kv_heads": 8, "head_dim": 128}
    cases = [
        heads | {"batch": batch, "context": 4096, "kv_bytes_16bit": batch * 2**24}
        for batch in (1, 16)
    ]
    memory = {"comet-kv4": 36000.0, "sdpa-bf16": 131072.0, "vllm-fa3-fp8": 65536.0}
    return [
        *(
            record("attention", c, "time", "us", b, t, **fields)
            for c in cases
            for b, t in times.items()
        ),
        *(
            record("attention", cases[0], "kv_bytes_per_token", "bytes", b, v, origin="modelled")
            for b, v in memory.items()
        ),
    ]
