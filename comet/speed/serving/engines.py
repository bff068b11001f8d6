# SPDX-License-Identifier: Apache-2.0
"""Starting an engine in its own environment: a request file in, a response file out."""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from comet import __version__, hints
from comet.errors import UserError
from comet.files import write_json, write_text
from comet.speed import nvml
from comet.speed.backends import Unavailable
from comet.speed.serving.cases import MOST, ServingJob
from comet.speed.serving.models import write_model_folder
from comet.speed.serving.vllm_weights import REPORT

PYTHON = "COMET_VLLM_PYTHON"
WORKER = Path(__file__).with_name("vllm_worker.py")
REPOSITORY = Path(__file__).resolve().parents[3]
FORMAT = 1
MEMORY_SHARE = 0.92
START_SECONDS, SECONDS_A_LOAD = 900, 600
WEIGHTS = "weights.json"
READ_EVERY = 0.25  # seconds between readings of the GPU
READ = {"sm_clock": "sm_clock_mhz", "power": "power_w", "gpu_utilisation": "busy_percent"}
# A batch of this size is scheduled where a load asks for as many requests as fit.
MOST_REQUESTS = 512

# quantization of the model folder, arguments of vllm.LLM, and whether comet's plugin is needed
ENGINES: dict[str, tuple[str | None, dict, bool]] = {
    "vllm-bf16": (None, {}, False),
    "vllm-w4a16": ("awq", {}, False),
    "vllm-fp8": (None, {"quantization": "fp8"}, False),
    "vllm-fp8-kv8": (None, {"quantization": "fp8", "kv_cache_dtype": "fp8"}, False),
    "vllm-comet": ("fmpq", {"attention_backend": "CUSTOM"}, True),
    "vllm-comet-w4ax": ("fmpq", {}, True),
    "vllm-comet-kv4": (None, {"attention_backend": "CUSTOM"}, True),
}
# The same for every engine: the second model runner is vLLM's default for some models and needed
# by KV4 for all.
SURROUNDINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
}
# Of a start, which is not timed; the environment may say otherwise. Each model folder is new, so
# that a compiled model kept for the next start would not be found by it.
STARTING = {"VLLM_USE_AOT_COMPILE": "0"}


def vllm_python() -> str:
    """The Python that has vLLM: ``COMET_VLLM_PYTHON``, or this one.

    Raises:
        Unavailable: none has it.
    """
    named = os.environ.get(PYTHON)
    if named:
        if not shutil.which(named):
            raise Unavailable(f"{PYTHON} is {named}, which is no program; {hints.VLLM}")
        return named
    if find_spec("vllm") is None:
        raise Unavailable(f"vLLM is not here; {hints.VLLM}")
    return sys.executable


def serve_with_vllm(
    job: ServingJob, seed: int, repeats: int, profile: bool = False, total_gb: float | None = None
) -> dict:
    """The worker's response to one engine start.

    Args:
        job: engine and loads.
        seed: of prompts and engine.
        repeats: timed runs of each load, at least; the worker times short loads again.
        profile: also list the GPU time of kernels, for the largest load.
        total_gb: memory of the GPU, 10^9 bytes; needed where the job has a cap.

    Raises:
        Unavailable: vLLM is not here, or the engine did not come up.
    """
    python = vllm_python()
    with tempfile.TemporaryDirectory(prefix="comet-serving-") as scratch:
        request, response = Path(scratch, "request.json"), Path(scratch, "response.json")
        write_json(request, worker_request(job, Path(scratch), seed, repeats, profile, total_gb))
        command = [python, str(WORKER), str(request), str(response)]
        seconds = START_SECONDS + SECONDS_A_LOAD * len(job.loads)
        _announce_plugins(Path(scratch), ENGINES[job.engine][2])
        with nvml.Watch(READ_EVERY, counters=False) as watch:
            said = _run(command, seconds, python, Path(scratch))
        found = read_response(response, job, said)
        found["engine"]["weights"] = _drawn_weights(Path(scratch), job.engine)
        for result in found["results"]:
            result["gpu"] = gpu_beside(watch, result.get("windows", []))
        return found


def gpu_beside(watch: nvml.Watch, windows: list[list[float]]) -> dict:
    """Clock, power and load of the GPU while requests were served, so that a limit of the card
    shows, and one of the processor: a GPU that waits for it is busy for less of the time.

    Args:
        watch: that ran beside the worker.
        windows: begin and end of each timed run, seconds since the epoch.
    """
    if watch.missing:
        return {"missing": watch.missing}
    readings = [watch.between(*window) for window in windows]

    def all_of(name: str) -> list[float]:
        return [value for reading in readings for value in reading.get(name, [])]

    found = {"read_every_s": READ_EVERY, "readings": len(all_of("power"))}
    for name, shown in READ.items():
        found[shown] = statistics.median(all_of(name)) if all_of(name) else None
    masks = [int(mask) for mask in all_of("throttle_reasons")]
    found["slowed"] = sum(bool(mask & nvml.SLOWED) for mask in masks)
    names = {name for mask in masks for name in nvml.reason_names(mask & nvml.SLOWED)}
    return found | {"slowed_by": sorted(names)}


def worker_request(
    job: ServingJob,
    folder: Path,
    seed: int,
    repeats: int,
    profile: bool = False,
    total_gb: float | None = None,
) -> dict:
    """What the worker is asked; writes the model's configuration into ``folder``."""
    quantization, arguments, plugin = ENGINES[job.engine]
    context = max(load.input_tokens + load.output_tokens for load in job.loads)
    counts = [MOST_REQUESTS if load.requests == MOST else load.requests for load in job.loads]
    write_model_folder(folder, job.model, quantization, context)
    share = MEMORY_SHARE
    if job.memory_cap is not None:
        if not total_gb:
            raise UserError("a memory cap needs a GPU whose memory is known")
        share = MEMORY_SHARE * min(1.0, job.memory_cap / total_gb)
    return {
        "format": FORMAT,
        "folder": str(folder),
        "plugin": plugin,
        "arguments": {"max_model_len": context, "max_num_seqs": max(counts), **arguments},
        "loads": [vars(load) for load in job.loads],
        "repeats": repeats,
        "seed": seed,
        "memory_share": share,
        "profile": profile,
    }


def _announce_plugins(folder: Path, comet: bool) -> None:
    """Entry points in ``folder``, for processes that vLLM starts: comet need not be installed
    where vLLM is.

    Args:
        folder: searched for packages by the engine.
        comet: whether the engine is one of comet's; weights are random in all of them.
    """
    described = folder / f"comet_plugins-{__version__}.dist-info"
    described.mkdir()
    write_text(described / "METADATA", f"Name: comet-plugins\nVersion: {__version__}\n")
    entries = ["comet_weights = comet.speed.serving.vllm_weights:register"]
    if comet:
        entries.append("comet = comet.integrations.vllm:register")
    write_text(described / "entry_points.txt", "\n".join(["[vllm.general_plugins]", *entries, ""]))


def _drawn_weights(folder: Path, engine: str) -> dict:
    """What ``vllm_weights`` says that it drew.

    Raises:
        Unavailable: nobody drew the engine's norms, or its packed weights.
    """
    report = folder / WEIGHTS
    found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    packed = found.get("packed") or ENGINES[engine][0] is None
    if not (found.get("norms") and packed):
        raise Unavailable(f"{engine} was timed on weights that nobody drew, or on zeros")
    return found


def surroundings(cache: Path, folder: Path) -> dict[str, str]:
    """The worker's environment.

    Args:
        cache: what any engine has compiled at its start is kept there.
        folder: searched for packages first.
    """
    found = STARTING | {"TRITON_CACHE_DIR": str(cache / "triton")} | dict(os.environ)
    paths = str(folder), str(REPOSITORY), found.get("PYTHONPATH")
    found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if found.pop("PYTHONDONTWRITEBYTECODE", None):
        # Kept out of the packages' folders then, but not compiled again by each engine.
        found.setdefault("PYTHONPYCACHEPREFIX", str(cache / "python"))
    return found | SURROUNDINGS


def cache_folder() -> Path:
    """Where engines find what others have compiled."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "comet", "serving")


def _run(command: list[str], seconds: int, python: str, folder: Path) -> str:
    """Start the worker; how it ended. It ends with this program, however that ends."""
    log = folder / "worker.log"
    environment = surroundings(cache_folder(), folder) | {REPORT: str(folder / WEIGHTS)}
    try:
        with log.open("w") as said:
            code = subprocess.run(
                command, stdout=said, stderr=said, timeout=seconds, env=environment
            ).returncode
    except subprocess.TimeoutExpired:
        code = f"no answer in {seconds} s"
    except OSError as error:
        raise Unavailable(f"{python} cannot be started ({error}); {hints.VLLM}") from error
    finally:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        sys.stderr.write(text)
    return f"ended with {code}: {_last_error(text)}"


def _last_error(said: str) -> str:
    """The last line that names an error; a worker's last line is seldom the reason."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1]


def read_response(path: Path, job: ServingJob, said: str) -> dict:
    """The worker's answer, checked: a file that is not one is no measurement.

    Args:
        path: the response.
        job: what was asked.
        said: how the worker ended, for the message.

    Raises:
        Unavailable: there is none, or it is malformed.
    """
    if not path.is_file():
        raise Unavailable(f"{job.engine} did not start; its worker {said}")
    try:
        response = json.loads(path.read_text(encoding="utf-8"))
        if response["format"] != FORMAT:
            raise ValueError(f"format {response['format']}, wanted {FORMAT}")
        for result in response["results"]:
            _check(result)
        loads = [{key: r[key] for key in vars(job.loads[0])} for r in response["results"]]
        if loads != [vars(load) for load in job.loads[: len(loads)]]:
            raise ValueError(f"loads {loads}")
        response["versions"], response["engine"], response["device"]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Unavailable(f"{WORKER.name} answered nothing usable ({reason})") from error
    missing = job.loads[len(response["results"]) :]
    response["results"] += [vars(load) | {"error": f"the worker {said}"} for load in missing]
    return response


def _check(result: dict) -> None:
    if "error" in result:
        return
    seconds, generated = result["seconds"], result["served"] * result["output_tokens"]
    if not seconds or not all(math.isfinite(value) and value > 0 for value in seconds):
        raise ValueError(f"seconds are {seconds[:3]}; they must be positive")
    if result["generated"] != generated:
        raise ValueError(f"generated {result['generated']} tokens instead of {generated}")
