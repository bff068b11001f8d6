# SPDX-License-Identifier: Apache-2.0
"""The workflow under the cluster profile that ships, and what its jobs noted about themselves."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml
from runner import REPOSITORY, Workflow

PROFILE = REPOSITORY / "workflow" / "profiles" / "slurm" / "profile.yaml"
WITNESS = Path(__file__).parent / "witness"
# What a small Slurm beside the test need not wait for.
QUICK = {
    "latency-wait": 5,
    "slurm-init-seconds-before-status-checks": 1,
    "slurm-keep-successful-logs": True,
    "slurm-status-attempts": 2,
    "max-status-checks-per-second": 10,
}


@dataclass
class Span:
    """One start of a job's script.

    Attributes:
        script: its name, such as ``evaluate``.
        start: seconds since the epoch.
        end: the same, None while it runs or when it was killed.
        job: number of the Slurm job.
        devices: value of CUDA_VISIBLE_DEVICES, None without a GPU.
    """

    script: str
    start: float
    end: float | None
    job: str
    devices: str | None


class Submitting(Workflow):
    """Snakemake that submits to Slurm; changes of the profile stand beside the run."""

    def __init__(self, directory: Path, config: dict, profile: dict | None = None, **variables):
        self.witness = directory / "witness.jsonl"
        named = {"PYTHONPATH": str(WITNESS), "COMET_WITNESS": str(self.witness)}
        super().__init__(directory, config, named | variables)
        settings = yaml.safe_load(PROFILE.read_text(encoding="utf-8")) | QUICK | (profile or {})
        (directory / "profile").mkdir()
        text = yaml.safe_dump(settings)
        (directory / "profile" / "profile.yaml").write_text(text, encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        command = super().command(*arguments)
        position = command.index("--cores")
        profile = ["--workflow-profile", str(self.directory / "profile")]
        return [*command[:position], *profile, *command[position + 2 :]]

    def spans(self) -> list[Span]:
        """Every start of a script, in order."""
        if not self.witness.exists():
            return []
        lines = [json.loads(line) for line in self.witness.read_text().splitlines()]
        ends = {(row["job"], row["script"]): row["time"] for row in lines if row["what"] == "end"}
        return [
            Span(row["script"], row["time"], ends.get(key), row["job"], row["devices"])
            for row in lines
            if row["what"] == "start"
            for key in [(row["job"], row["script"])]
        ]

    def started(self, script: str) -> bool:
        return any(span.script == script for span in self.spans())


def default_resources(**changes) -> dict:
    """The profile's default resources with some changed."""
    settings = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    return {"default-resources": settings["default-resources"] | changes}
