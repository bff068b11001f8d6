# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's GEMM kernels, timed in TensorRT-LLM's own environment through two files.

TensorRT-LLM pins another torch than comet's. ``COMET_TRTLLM_PYTHON`` names the Python that has it;
``tensorrt_llm_worker.py`` runs there, on the same GPU, for all shapes before the others' turn.
"""

import json
import math
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from comet import hints
from comet.files import write_json
from comet.speed.backends import GemmShape, MeasuredElsewhere, Unavailable
from comet.speed.timer import DEFAULT, L2_MULTIPLE

PYTHON = "COMET_TRTLLM_PYTHON"
WORKER = Path(__file__).with_name("tensorrt_llm_worker.py")
FORMAT = 1
START_SECONDS, SECONDS_A_SHAPE = 300, 120  # loading; weight layout, engine, autotuning
HINT = hints.TENSORRT_LLM
_measured: dict[tuple[str, int, int, int], MeasuredElsewhere | str] = {}


def prepare(kind: str, shapes: list[GemmShape], seed: int) -> None:
    """Measure all shapes at once; what goes wrong is told by each ``load``."""
    sizes = {(shape.m, shape.n, shape.k) for shape in shapes}
    try:
        found = _run(kind, sorted(sizes, key=lambda size: (size[1:], size[0])), seed)
    except Unavailable as missing:
        found = dict.fromkeys(sizes, str(missing))
    _measured.update({(kind, *size): result for size, result in found.items()})


def w4a16(shape: GemmShape, _device: torch.device) -> MeasuredElsewhere:
    """fp16 activations, 4-bit weights, fp16 scale per group of 128."""
    return _load("w4a16", shape)


def w8a8(shape: GemmShape, _device: torch.device) -> MeasuredElsewhere:
    """SmoothQuant's int8 GEMM, scales per token and output channel, fp16 output."""
    return _load("w8a8", shape)


def _load(kind: str, shape: GemmShape) -> MeasuredElsewhere:
    found = _measured.get((kind, shape.m, shape.n, shape.k), f"it was not prepared; {HINT}")
    if isinstance(found, MeasuredElsewhere):
        return found
    raise Unavailable(found)


def _interpreter() -> str:
    """The Python of TensorRT-LLM.

    Raises:
        Unavailable: there is none.
    """
    python = os.environ.get(PYTHON)
    if not python:
        raise Unavailable(f"TensorRT-LLM is not here; {HINT}")
    if not shutil.which(python):
        raise Unavailable(f"{PYTHON} is {python}, which is no program; {HINT}")
    return python


def _run(kind: str, sizes: list[tuple[int, int, int]], seed: int) -> dict:
    """Start the worker; (m, n, k) -> what it measured, or why it did not."""
    python = _interpreter()
    with tempfile.TemporaryDirectory(prefix="comet-trtllm-") as folder:
        request, response = Path(folder, "request.json"), Path(folder, "response.json")
        write_json(
            request,
            {
                "format": FORMAT,
                "kind": kind,
                "shapes": [dict(zip("mnk", size, strict=True)) for size in sizes],
                "seed": seed,
                "timer": asdict(DEFAULT) | {"l2_multiple": L2_MULTIPLE},
            },
        )
        command = [python, str(WORKER), str(request), str(response)]
        seconds = START_SECONDS + SECONDS_A_SHAPE * len(sizes)
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{python} did not answer in {seconds} s; ask for fewer m") from None
        except OSError as error:
            raise Unavailable(f"{python} cannot be started ({error}); {HINT}") from error
        if run.returncode:
            last = (run.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"{python} {WORKER.name} ended with {run.returncode}: {last}")
        return _read(response, sizes, python)


def _read(path: Path, sizes: list[tuple[int, int, int]], python: str) -> dict:
    """The worker's answer, checked: a file that is not one is no measurement."""
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
        if answer["format"] != FORMAT:
            raise ValueError(f"format {answer['format']}, wanted {FORMAT}")
        method = _method(answer)
        found = {(r["m"], r["n"], r["k"]): _result(r, method) for r in answer["results"]}
        if missing := set(sizes) - set(found):
            raise ValueError(f"no result for m, n, k = {min(missing)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Unavailable(f"{python} {WORKER.name} answered nothing usable ({reason})") from error
    return found


def _method(answer: dict) -> dict:
    return DEFAULT.method() | {
        "not_timed": "launch from the host, activation quantization",
        "process": "TensorRT-LLM's own, before the backends of comet's process",
        "device": str(answer["device"]),
        "versions": dict(answer["versions"]),
    }


def _result(result: dict, method: dict) -> MeasuredElsewhere | str:
    if "error" in result:
        return str(result["error"])
    samples = [float(value) for value in result["samples"]]
    if not samples or not all(math.isfinite(value) and value > 0 for value in samples):
        raise ValueError(f"samples are {samples[:3]}; they must be positive microseconds")
    return MeasuredElsewhere(samples, method)
