# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks: one problem each, with how to get it."""

from dataclasses import dataclass, field

from comet import hints
from comet.doctor.machine import driver_for, requirements_for, runs_on
from comet.doctor.rivals import plugin_disabled
from comet.doctor.sources import is_good

NEWEST_TILED = "9.0"


@dataclass
class Problem:
    """Something missing.

    Attributes:
        what: it is.
        get: how to get it, None where ``what`` says so itself.
        blocks, skips: targets that cannot run, and targets that run without a part.
    """

    what: str
    get: str | None
    blocks: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)


def find_problems(facts: dict, sources: dict, rivals: dict, config: dict | None) -> dict:
    """Identifier -> problem of everything that may be in a target's way."""
    found = {}

    def add(name: str, what: str, get: str | None = None) -> None:
        found[name] = Problem(what, get)

    if facts["packages_missing"]:
        names = ", ".join(facts["packages_missing"])
        add("packages", f"Python packages are missing: {names}", hints.TORCH)
    if facts["compiler_missing"]:
        add("compiler", facts["compiler_missing"])
    _add_sources(add, sources)
    for name, state in rivals.items():
        if not state["found"]:
            add(f"rival:{name}", f"{name} is not found", state["get"])
    if disabled := plugin_disabled():
        add("vllm-plugin", disabled, hints.VLLM_PLUGINS)
    _add_gpu(add, facts, config or {})
    _add_counters(add, facts["counters"])
    missing = gpu_problems(found)
    if config and missing and uses_gpu(config, facts):
        first = found[missing[0]]
        what = f"quantization and accuracy use a GPU (device: {config['device']}): {first.what}"
        get = hints.DEVICE if missing[0] == "gpu" else f"{first.get}; or say --config device=cpu"
        add("device", what, get)
    return found


def problem_of(source: str, state: dict) -> str:
    """Identifier of what is in the way of a source: its own, or what it has in common."""
    return state["cause"] or source


def _add_sources(add, sources: dict) -> None:
    """One problem a source, or one for all that are gated, on the hub, or in the index."""
    shared = {
        "hub": "the hub cannot be reached, and its cache does not hold",
        "gated": "gated on the hub for this user",
        "index": "no package index here has the wheel of",
    }
    for cause, words in shared.items():
        found = {name: state for name, state in sources.items() if state["cause"] == cause}
        if found:
            names = ", ".join(name.partition(":")[2] or name for name in found)
            add(cause, f"{words}: {names}", next(iter(found.values()))["get"])
    for name, state in sources.items():
        if not is_good(state) and not state["cause"]:
            add(name, f"{name.replace(':', ' ')}: {state['what']}", state["get"])


def uses_gpu(config: dict, facts: dict) -> bool:
    """Whether quantization and accuracy run on the GPU, as the workflow decides it."""
    return config["device"] == "cuda" or (config["device"] == "auto" and bool(facts["gpus"]))


def gpu_problems(problems: dict) -> list[str]:
    """Those that keep every job from the GPU."""
    return [name for name in ("gpu", "torch-cuda", "driver") if name in problems]


def _add_gpu(add, facts: dict, config: dict) -> None:
    driver, cuda = facts["driver"], facts["torch_cuda"]
    if not facts["gpus"]:
        add("gpu", facts["gpu_missing"] or "there is no GPU", hints.GPU)
        return
    requirements = requirements_for(driver)
    if cuda is None and facts["torch"]:
        what = f"there is a GPU, but this torch ({facts['torch']}) has no CUDA"
        add("torch-cuda", what, hints.TORCH_CUDA.format(requirements=requirements))
    elif cuda and not runs_on(cuda, driver):
        needed = driver_for(cuda)
        what = f"driver {driver} is too old for this torch: CUDA {cuda} needs {needed} or newer"
        get = hints.DRIVER.format(driver=needed, requirements=requirements)
        if not runs_on("12", driver):
            get = hints.OLD_DRIVER.format(oldest=driver_for("12"), newest=driver_for("13"))
        add("driver", what, get)
    version = facts["nvcc_version"]
    if version and not runs_on(version, driver):
        what = f"what nvcc {version} compiles does not load under driver {driver}"
        add("nvcc", what, hints.NVCC_DRIVER)
    _add_architecture(add, facts["gpus"][0], config)
    if all(gpu["used_by"] for gpu in facts["gpus"]):
        first = facts["gpus"][0]
        what = f"GPU {first['index']} is used by {', '.join(first['used_by'])}"
        add("busy", what, hints.BUSY)


def _add_architecture(add, gpu: dict, config: dict) -> None:
    """Whether the library holds code that this GPU runs; PTX of sm_80 serves what is newer."""
    capability = gpu["compute_capability"]
    chosen = config.get("kernels", {}).get("architectures", ["sm_80", "sm_90a"])
    if float(capability) < 8:
        what = f"{gpu['name']} has compute capability {capability}; the kernels need 8.0"
        add("architecture", what, hints.OLD_GPU)
    elif "sm_80" not in chosen and capability != NEWEST_TILED:
        what = f"kernels.architectures is {', '.join(chosen)}, and {gpu['name']} needs sm_80"
        add("architecture", what, hints.ARCHITECTURE)


def _add_counters(add, counters: dict) -> None:
    if counters["ncu"] is None:
        add("counters", "Nsight Compute (ncu) is not found", hints.COUNTERS_MISSING)
    elif counters["permitted"] is False:
        add("counters", "the driver refuses hardware counters to users", hints.COUNTERS_REFUSED)
