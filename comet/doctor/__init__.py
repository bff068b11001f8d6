# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and which targets run on it, run in part, or cannot run, with the reason.

Nothing is downloaded, built or measured; with the network two questions are asked, whether the
package index and the hub have what the configuration names.
"""

import difflib
from dataclasses import asdict
from pathlib import Path

from comet import hints
from comet.doctor.machine import machine_facts
from comet.doctor.problems import Problem, find_problems
from comet.doctor.rivals import rival_states
from comet.doctor.sources import source_states
from comet.doctor.text import as_text
from comet.errors import UserError

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
    known = _known_targets()
    if known and target not in known:
        raise UserError(_unknown(target, known))
    if config is None:
        blocker = "config" if broken else "packages"
        targets = [_row(name, state="blocked", blocked_by=[blocker]) for name in known]
        if known:
            problems[blocker].blocks += known
    else:
        targets = _targets(config, problems, sources, facts, configs, folder) if known else []
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


def _known_targets() -> list[str]:
    """Names of the targets; none where packages are missing that tell them."""
    try:
        from comet.doctor.targets import MAKES
        from comet.figures import FIGURES
    except ImportError:
        return []
    return [*MAKES, *(name for name in FIGURES if name not in MAKES)]


def _unknown(target: str, known: list[str]) -> str:
    close = difflib.get_close_matches(target, known, 1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"no target {target!r}; known are {', '.join(known)}{meant}"


def _targets(
    config: dict,
    problems: dict[str, Problem],
    sources: dict,
    facts: dict,
    configs: list[Path],
    folder: Path,
) -> list[dict]:
    """The rows of the report; problems of single targets are added to the others."""
    from comet.doctor.estimates import Estimates
    from comet.doctor.model_memory import model_memory
    from comet.doctor.problems import gpu_problems
    from comet.doctor.targets import target_problems, target_states

    estimates = Estimates(config, [path.name for path in configs], facts, folder)
    problems |= target_problems(config, facts) | estimates.disk_problem()
    problems |= model_memory(config, facts)
    usable = bool(facts["gpus"]) and not gpu_problems(problems)
    shown = ("makes", "kinds", "sources", "state", "blocked_by", "skips")
    rows = []
    for target in target_states(config, problems, sources):
        fields = {name: getattr(target, name) for name in shown}
        notes = [note for note in (target.note, estimates.short_of_memory(target)) if note]
        fields |= estimates.time(target, usable) | {"note": "; ".join(notes) or None}
        rows.append(_row(target.name, **fields))
    return rows


def _row(name: str, **fields) -> dict:
    lists = {"kinds": [], "sources": [], "blocked_by": [], "skips": {}}
    unknown = {"makes": None, "note": None, "minutes": None, "minutes_from": None}
    return {"name": name} | lists | unknown | fields
