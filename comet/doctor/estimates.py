# SPDX-License-Identifier: Apache-2.0
"""How long targets take, and whether disk and memory do for them."""

from dataclasses import dataclass
from pathlib import Path

from comet import hints
from comet.doctor.costs import cost_of
from comet.doctor.job_times import benchmark_files, gpu_minutes, minutes_of_earlier_runs
from comet.doctor.model_memory import GB_OF_GIB
from comet.doctor.problems import Problem, uses_gpu
from comet.doctor.targets import Target
from comet.speed.capability import slug

LEAST_DISK_GB = 0.5


@dataclass(frozen=True)
class Estimates:
    """Costs of targets under a configuration on a machine.

    Attributes:
        config: the merged configuration.
        names: file names of the configurations laid over the default.
        facts: of ``comet.doctor.machine``.
        folder: where snakemake runs.
    """

    config: dict
    names: list[str]
    facts: dict
    folder: Path

    def time(self, target: Target, gpu_usable: bool) -> dict:
        """``minutes`` and ``minutes_from``: earlier runs here where every job of the target has a
        benchmark file, else what the kernels took elsewhere, else the manual's; empty if unknown.
        """
        files = benchmark_files(target, self.config) or ()
        at_once = 1 if uses_gpu(self.config, self.facts) else self.facts["cores"]
        here = [self.folder / "benchmarks" / self._machine() / name for name in files]
        minutes = minutes_of_earlier_runs(here, at_once)
        if minutes is not None:
            return _time(minutes, "earlier runs on this machine")
        if gpu_usable and (minutes := gpu_minutes(target, self.config)):
            return _time(minutes, "as on an H200, without the build")
        cost = cost_of(target.name, self.names)
        if cost is None or cost.minutes is None:
            return {}
        return _time(cost.minutes, f"{cost.machine}; {cost.note}")

    def disk_problem(self) -> dict[str, Problem]:
        """The problem ``disk`` where it cannot hold what earlier runs have not written yet."""
        cost = cost_of("all", self.names)
        needed = max((cost and (cost.disk_gb or cost.download_gb)) or 0, LEAST_DISK_GB)
        folders = (self.folder / self.config[name] for name in ("resources", "results"))
        written = sum(map(_size, folders)) / 1e9
        free = self.facts["disk_free_gib"] * GB_OF_GIB
        if free >= max(needed - written, LEAST_DISK_GB):
            return {}
        what = (
            f"the run needs about {needed:g} GB of disk, {written:.1f} GB are written, "
            f"{free:.1f} GB are free"
        )
        return {"disk": Problem(what, hints.DISK)}

    def short_of_memory(self, target: Target) -> str | None:
        """A note where the manual's memory is more than there is."""
        cost = cost_of(target.name, self.names) or cost_of("all", self.names)
        there = self.facts["memory_gib"] * GB_OF_GIB
        if cost and target.kinds and cost.memory_gb and there < cost.memory_gb:
            return f"needs about {cost.memory_gb:g} GB of memory, {there:.1f} GB are there"
        return None

    def _machine(self) -> str:
        gpus = self.facts["gpus"]
        named = self.config["machine"]
        return f"local-{slug(gpus[0]['name'] if gpus else None)}" if named == "auto" else named


def _time(minutes: float, source: str) -> dict:
    return {"minutes": round(minutes, 1), "minutes_from": source}


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
