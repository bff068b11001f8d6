# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs of the small report that the tests read; no number here was measured."""

from pathlib import Path

PAPER = Path(__file__).resolve().parents[2] / "resources" / "paper"
CASE = {"model": "tiny", "dataset": "text", "split": "test", "context": 64, "windows": "0-1"}
GEMM = {"model": "tiny", "layer": "qkv", "m": 16, "n": 512, "k": 256}
REASON = "no NVIDIA GPU <here>; run on a machine with one"
MADE = {
    "environment": {"device": "cpu", "python": "3.11", "versions": {"torch": "2.13.0"}},
    "provenance": {
        "commit": "0123abc",
        "dirty": True,
        "seed": 7,
        "start": "2026-01-02T03:04:05+00:00",
        "run_id": "run",
    },
}
ON_GPU = MADE | {"environment": {"device": "Reference GPU"}}
NAMES = ("table1", "kv4_loss", "fig10", "fig14")
CONTEXT = {
    "labels": {"tiny": "Tiny model (weights published in 4 bit)", "text": "A text"},
    "config_name": "test.yaml",
    "config": {"seed": 7},
    "machine": "local-cpu",
    "paper": PAPER,
    "choices": [{"option": "outlier", "values": "max", "perplexity": "41.5"}],
}
