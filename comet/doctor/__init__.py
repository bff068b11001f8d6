# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and which targets run on it, run in part, or cannot run, with the reason.

Nothing is downloaded, built or measured; with the network two questions are asked, whether the
package index and the hub have what the configuration names.
"""

import difflib
from dataclasses import asdict
from pathlib import Path

from comet import hints
from comet.doctor.costs import cost_of, minutes_of_earlier_runs
from comet.doctor.machine import machine_facts
from comet.doctor.model_memory import GB_OF_GIB, model_memory
from comet.doctor.problems import Problem, find_problems, gpu_problems, uses_gpu
from comet.doctor.rivals import rival_states
from comet.doctor.sources import source_states
from comet.doctor.text import as_text
from comet.errors import UserError
from comet.speed.capability import slug

VERSION = 1

__all__ = ["as_text", "examine"]


def examine(
    target: str = "all", configs: list[Path] = (), network: bool = True, folder: Path = Path(".")
) -> dict:
    """The state of this machine and of every target.

    Args:
        target: the one that is asked for.
        configs: files laid over ``config/config.yaml``.
        network: whether package index and hub may be asked.
        folder: where snakemake will run.

    Returns:
        A JSON object, described in ``workflow/schemas/doctor.schema.yaml``.

    Raises:
        UserError: there is no such target.
    """
    report = {
        "version": VERSION,
        "target": target,
        "runs": False,
        "configs": [str(path) for path in configs],
    }
    facts = machine_facts(folder)
    rivals = rival_states()
    config, broken = _config(configs)
    sources = source_states(config, network, folder) if config else {}
    problems = find_problems(facts, sources, rivals, config)
    if broken:
        problems["config"] = Problem(broken, hints.CONFIG)
    names = [path.name for path in configs]
    targets = _targets(target, config, problems, sources, facts, names, folder)
    report["runs"] = any(row["name"] == target and row["state"] != "blocked" for row in targets)
    return report | {
        "machine": facts,
        "sources": sources,
        "rivals": rivals,
        "problems": {name: asdict(problem) for name, problem in problems.items()},
        "targets": targets,
    }


def _config(configs: list[Path]) -> tuple[dict | None, str | None]:
    """The merged configuration, or what is wrong with it; neither where packages are missing."""
    try:
        from comet.config import load_config
    except ImportError:
        return None, None
    try:
        return load_config(configs), None
    except UserError as error:
        return None, str(error)


def _targets(asked, config, problems, sources, facts, names, folder) -> list[dict]:
    try:
        from comet.doctor.targets import MAKES, target_problems, target_states
        from comet.figures import FIGURES
    except ImportError:
        return []
    known = [*MAKES, *(name for name in FIGURES if name not in MAKES)]
    if asked not in known:
        close = difflib.get_close_matches(asked, known, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"no target {asked!r}; known are {', '.join(known)}{meant}")
    if config is None:
        blocker = "config" if "config" in problems else "packages"
        problems[blocker].blocks += known
        return [_row(name, state="blocked", blocked_by=[blocker]) for name in known]
    free = facts["disk_free_gib"] * GB_OF_GIB
    problems |= target_problems(config, free) | _disk(config, free, names, folder)
    problems |= model_memory(config, facts)
    at_once = 1 if uses_gpu(config, facts) else facts["cores"]
    rows = []
    for target in target_states(config, problems, sources):
        shown = ("makes", "kinds", "sources", "state", "blocked_by", "skips")
        fields = {name: getattr(target, name) for name in shown}
        time = _time(target, config, problems, facts, names, at_once, folder)
        note = "; ".join(filter(None, (target.note, _short_of_memory(target, names, facts))))
        rows.append(_row(target.name, **fields, note=note or None, **time))
    return rows


def _row(name: str, **fields) -> dict:
    lists = {"kinds": [], "sources": [], "blocked_by": [], "skips": {}}
    unknown = {"makes": None, "note": None, "minutes": None, "minutes_from": None}
    return {"name": name} | lists | unknown | fields


def _time(target, config, problems, facts, names, at_once, folder) -> dict:
    """Minutes from benchmark files where every job of the target has one, else the manual's."""
    from comet.doctor.targets import benchmark_files, gpu_minutes

    gpu = facts["gpus"][0]["name"] if facts["gpus"] else None
    machine = f"local-{slug(gpu)}" if config["machine"] == "auto" else config["machine"]
    files = benchmark_files(target, config)
    here = [folder / "benchmarks" / machine / name for name in files or ()]
    if (minutes := minutes_of_earlier_runs(here, at_once)) is not None:
        return {"minutes": round(minutes, 1), "minutes_from": "earlier runs on this machine"}
    usable = facts["gpus"] and not gpu_problems(problems)
    if usable and (minutes := gpu_minutes(target, config)):
        return {"minutes": round(minutes, 1), "minutes_from": "as on an H200, without the build"}
    cost = cost_of(target.name, names)
    if cost is None or cost.minutes is None:
        return {}
    return {"minutes": cost.minutes, "minutes_from": f"{cost.machine}; {cost.note}"}


def _disk(config: dict, free: float, names: list[str], folder: Path) -> dict[str, Problem]:
    """The problem of a disk that cannot hold the run, less what earlier runs have written."""
    cost = cost_of("all", names)
    needed = (cost and (cost.disk_gb or cost.download_gb)) or 0
    written = sum(_size(folder / config[name]) for name in ("resources", "results")) / 1e9
    if free >= max(needed - written, 0.5):
        return {}
    what = (
        f"the run needs about {max(needed, 0.5):g} GB of disk, {written:.1f} GB are written, "
        f"{free:.1f} GB are free"
    )
    return {"disk": Problem(what, hints.DISK)}


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _short_of_memory(target, names: list[str], facts: dict) -> str | None:
    cost = cost_of(target.name, names) or cost_of("all", names)
    there = facts["memory_gib"] * GB_OF_GIB
    if cost and target.kinds and cost.memory_gb and there < cost.memory_gb:
        return f"needs about {cost.memory_gb:g} GB of memory, {there:.1f} GB are there"
    return None
