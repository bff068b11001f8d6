# SPDX-License-Identifier: Apache-2.0
"""The targets of the workflow: what each makes and needs, and what that means on this machine."""

from dataclasses import dataclass, field

from comet import config as configuration
from comet import hints
from comet.doctor.costs import cost_of
from comet.doctor.model_memory import GB_OF_GIB
from comet.doctor.problems import Problem, gpu_problems, problem_of
from comet.doctor.rivals import rival_of
from comet.figures import FIGURES
from comet.measurements import KINDS

# What is left out of a target without a GPU, by kind of record.
TIMED = {
    "gemm": "times of the linear layers",
    "attention": "times of attention",
    "serving": "serving throughput",
    "profile": "counters and readings of the kernels",
    "trace": "traces of the kernels",
}
# Targets besides the figures, in the order of the manual: name -> what it makes.
MAKES = {
    "all": "library, all figures, report",
    "smoke": "the same, small",
    "kernels": "the CUDA library",
    "inputs": "every model and text, fetched and prepared",
    "quantize": "FMPQ checkpoints",
    "memory": "peak memory of quantizing a model of random weights",
    "accuracy": "perplexity and task accuracy of all models and rows",
    "accuracy_full": "the whole accuracy study on a processor",
    "accuracy_gpu": "the whole accuracy study on a GPU",
    "choices": "perplexity under each open option of the method",
    "attention": "times and memory of attention over the KV cache",
    "serving": "throughput of serving engines",
    "profile": "hardware counters and NVML readings of the kernels",
    "report": "results/<machine>/report.html",
}
# Targets that run under a configuration of their own: name -> its accuracy.scope.
STUDIES = {"accuracy_full": "full", "accuracy_gpu": "gpu"}


@dataclass
class Target:
    """A target on this machine.

    Attributes:
        name, makes: as the manual has them.
        kinds: kinds of record that it makes under this configuration.
        blocked_by: problems without whose solution it fails.
        sources: models, texts and tasks that it is made from.
        skips: problems -> the parts that are left out, as skipped records, because of them.
        note: what to know besides.
    """

    name: str
    makes: str
    kinds: list[str] = field(default_factory=list)
    blocked_by: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    skips: dict[str, list[str]] = field(default_factory=dict)
    note: str | None = None

    @property
    def state(self) -> str:
        """``runs``, ``partly`` or ``blocked``."""
        return "blocked" if self.blocked_by else "partly" if self.skips else "runs"


def target_states(config: dict, problems: dict[str, Problem], sources: dict) -> list[Target]:
    """Every target, in the order of the manual; problems are told which targets they concern."""
    asked = asked_kinds(config)
    targets = [_plain(name, config, asked) for name in MAKES]
    targets += [_figure(name, asked) for name in FIGURES if name not in MAKES]
    for target in targets:
        for kind in target.kinds:
            _need(target, kind, config, problems, sources)
        if target.name in ("all", "smoke", "kernels"):
            _block(target, problems, "compiler")
        _block(target, problems, "packages", f"target:{target.name}")
    for target in targets:
        for name in target.blocked_by:
            problems[name].blocks.append(target.name)
        for name in target.skips:
            problems[name].skips.append(target.name)
    return targets


def asked_kinds(config: dict) -> list[str]:
    """Kinds of record that the configuration asks for."""
    cases = configuration.accuracy_cases(config).values()
    asked = {"accuracy": bool(cases), "quantize": any(map(by_fmpq, cases))}
    for kind in KINDS:
        section = config.get(kind, {})
        if kind not in asked and isinstance(section, dict):
            asked[kind] = any(section.get(key) for key in ("models", "suites", "runs"))
    return [kind for kind in KINDS if asked[kind]]


def by_fmpq(case: dict) -> bool:
    """Whether a case of ``accuracy_cases`` reads a checkpoint of FMPQ."""
    return case["checkpoint"] in configuration.FMPQ_CHECKPOINTS


def _plain(name: str, config: dict, asked: list[str]) -> Target:
    target = Target(name, MAKES[name])
    if name in ("all", "smoke", "report", "inputs", *STUDIES):
        studies = {"choices": config["choices"], "kvcache": config.get("kv_cache", {})}
        target.kinds = [kind for kind in asked if name not in STUDIES or kind not in TIMED]
        target.kinds += [kind for kind, section in studies.items() if section.get("models")]
    elif name in ("memory", "choices") or name in asked:
        target.kinds = [name]
    return target


def _figure(name: str, asked: list[str]) -> Target:
    spec = FIGURES[name]
    target = Target(name, spec.title, [kind for kind in spec.kinds_needed if kind in asked])
    if not target.kinds:
        target.note = "published or reference numbers only"
    return target


def _block(target: Target, problems: dict, *names: str) -> None:
    for name in names:
        if name in problems and name not in target.blocked_by:
            target.blocked_by.append(name)


def _need(target: Target, kind: str, config: dict, problems: dict, sources: dict) -> None:
    if kind not in TIMED:
        names = sources_of(kind, config)
        target.sources += [name for name in names if name not in target.sources]
        _block(target, problems, *(problem_of(name, sources[name]) for name in names))
        if any(sources[name]["state"] not in ("ready", "local") for name in names):
            _block(target, problems, "disk")
    if target.name == "inputs":
        return
    if kind in TIMED:
        _block(target, problems, "compiler")
        _skip_parts(target, kind, config, problems)
    else:
        _block(target, problems, "device")
    if kind == "accuracy":
        _block(target, problems, "model-memory")


def _skip_parts(target: Target, kind: str, config: dict, problems: dict) -> None:
    if missing := gpu_problems(problems):
        # With another driver or torch, the library still has to be of the right compiler.
        for name in [*missing, *(name for name in ("nvcc",) if name in problems)]:
            target.skips.setdefault(name, []).append(TIMED[kind])
        if target.name in FIGURES:
            target.note = "shows a reference run, or published numbers alone"
        return
    if config["gpu"]["busy"] == "refuse":
        _block(target, problems, "busy")
    parts = dict.fromkeys(("nvcc", "architecture"), f"{kind} of comet's kernels")
    if kind == "profile":
        parts["counters"] = "hardware counters"
    if kind == "serving":
        parts["vllm-plugin"] = "comet inside vLLM"
    for backend in _backends(kind, config):
        rival = rival_of(backend, kind)
        parts[f"rival:{rival}"] = f"{kind} of {rival}"
    for name, part in parts.items():
        if name in problems:
            target.skips.setdefault(name, []).append(part)


def _backends(kind: str, config: dict) -> list[str]:
    if kind == "serving":
        return [engine for run in config[kind]["runs"] for engine in run["engines"]]
    return config[kind].get("backends", [])


def sources_of(kind: str, config: dict) -> list[str]:
    """Models, texts and tasks that a kind of record is made from."""
    calibration = f"text:{config['calibration']['text']}"
    if kind == "memory":
        return [calibration]
    if kind == "choices":
        models = [f"model:{name}" for name in config["choices"]["models"]]
        return [*models, calibration, f"text:{config['accuracy']['texts'][0]}"]
    if kind == "kvcache":
        models = [f"model:{name}" for name in config["kv_cache"]["models"]]
        return [*models, f"text:{config['accuracy']['texts'][0]}"]
    cases = configuration.accuracy_cases(config).values()
    if kind == "quantize":
        cases = list(filter(by_fmpq, cases))
    names = {f"model:{case['model']}": None for case in cases}
    if any(case["checkpoint"] for case in cases):
        names[calibration] = None
    if kind == "accuracy":
        names |= {f"text:{case['text']}": None for case in cases if case.get("text")}
        if any(case.get("task") for case in cases):
            names["tasks"] = None
    return list(names)


def target_problems(config: dict, facts: dict) -> dict[str, Problem]:
    """What a configuration leaves out that one target asks for, or the disk has no place for."""
    found = {}
    if config["machine"] != "local-smoke":
        found["target:smoke"] = Problem("smoke needs its small settings", hints.SMOKE)
    if not config["choices"]["models"]:
        found["target:choices"] = Problem("choices.models names no model", hints.CHOICES)
    for kind, key in (("profile", "models"), ("attention", "models"), ("serving", "runs")):
        if not config.get(kind, {}).get(key):
            what = f"the config key {kind}.{key} is empty"
            found[f"target:{kind}"] = Problem(what, hints.NAME_MODEL)
    for name, scope in STUDIES.items():
        if config["accuracy"].get("scope") != scope:
            get = hints.STUDY.format(target=name)
            found[f"target:{name}"] = Problem(f"{name} needs its own settings", get)
    needed, free = cost_of("memory", []).disk_gb, facts["disk_free_gib"] * GB_OF_GIB
    if free < needed:
        what = f"memory needs {needed:g} GB of disk while it runs, {free:.1f} GB are free"
        found["target:memory"] = Problem(what, hints.DISK)
    return found
