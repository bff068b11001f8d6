# SPDX-License-Identifier: Apache-2.0
"""The one record type that every measurement is written as, one JSON object a line."""

import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from comet import __version__
from comet.errors import UserError
from comet.files import read_json_lines, write_json_lines

KINDS = (
    "gemm",
    "attention",
    "quantize",
    "serving",
    "profile",
    "trace",
    "accuracy",
    "simulate",
)
ORIGINS = ("measured", "modelled", "published")
STATUSES = ("ok", "skipped", "failed")
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Measurement:
    """One measured, modelled or published number, or the reason why there is none.

    Attributes:
        kind: one of ``KINDS``.
        case: what was measured; the keys depend on the kind (``docs/contracts.md``).
        metric: name of the quantity, for instance ``ppl_token_1024`` or ``time``.
        unit: unit of ``samples`` and ``median``, for instance ``us``; ``1`` for a pure number.
        backend: implementation or method that was measured.
        samples: raw samples in measuring order; empty unless ``status`` is ``ok``.
        median: median of the samples, ``None`` unless ``status`` is ``ok``.
        method: how it was measured and what is not included.
        environment: device, driver and library versions.
        provenance: commit, command, configuration, start time, run id.
        status: ``ok``, ``skipped`` or ``failed``; the last two need a ``reason``.
    """

    kind: str
    case: dict
    metric: str
    unit: str
    backend: str
    samples: list[float] = field(default_factory=list)
    median: float | None = None
    method: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)
    status: str = "ok"
    reason: str | None = None
    origin: str = "measured"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("kind", self.kind, KINDS),
            ("origin", self.origin, ORIGINS),
            ("status", self.status, STATUSES),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}, not one of {', '.join(allowed)}")
        if self.status == "ok" and not self.samples:
            raise ValueError("a record with status ok needs at least one sample")
        if self.status != "ok" and (self.samples or not self.reason):
            raise ValueError(f"a {self.status} record carries a reason and no samples")
        if self.samples and self.median is None:
            object.__setattr__(self, "median", statistics.median(self.samples))

    def as_dict(self) -> dict:
        """The record as plain JSON types."""
        return asdict(self)


def skipped(kind: str, case: dict, metric: str, unit: str, backend: str, reason: str, **fields):
    """A record that says what is missing and how to get it, instead of a number."""
    return Measurement(kind, case, metric, unit, backend, status="skipped", reason=reason, **fields)


def case_id(kind: str, case: dict, backend: str) -> str:
    """A stable file-name-safe identifier of one case: readable start, hash of the whole."""
    text = json.dumps({"kind": kind, "case": case, "backend": backend}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    readable = "-".join(str(case[key]) for key in ("model", "layer", "dataset") if key in case)
    safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in f"{readable}-{backend}")
    return f"{safe}-{digest}"


def write_records(path: Path | str, records: list[Measurement]) -> None:
    """Write records as JSON Lines, atomically."""
    write_json_lines(path, [record.as_dict() for record in records])


def read_records(path: Path | str) -> list[Measurement]:
    """Read records and check each one.

    Raises:
        UserError: a line is not a valid record; the message names file and line.
    """
    records = []
    for number, row in enumerate(read_json_lines(path), 1):
        try:
            records.append(Measurement(**row))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}:{number} is not a measurement: {error}") from error
    return records


def gather(paths: list[Path | str], out: Path | str) -> int:
    """Join record files into one, sorted so that equal runs give equal files; returns the count."""
    records = [record for path in paths for record in read_records(path)]
    records.sort(key=lambda r: json.dumps([r.case, r.backend, r.metric], sort_keys=True))
    write_records(out, records)
    return len(records)


def provenance(config: dict, seed: int, run_id: str | None = None) -> dict:
    """Where a number comes from: commit, command, resolved configuration, seed, start time."""
    commit, dirty = _git_state()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "commit": commit,
        "dirty": dirty,
        "comet": __version__,
        "command": " ".join([_program(), *sys.argv[1:]]),
        "config": config,
        "seed": seed,
        "start": started,
        "run_id": run_id or hashlib.sha256(f"{started}{sys.argv}".encode()).hexdigest()[:12],
    }


def _program() -> str:
    """The program as a user calls it: records do not name a folder of the machine."""
    name = Path(sys.argv[0]).name
    return "comet" if name == "cli.py" else name


def _git_state() -> tuple[str | None, bool | None]:
    """Commit and dirty flag.

    ``COMET_COMMIT`` names the commit of a tree that was copied without its history, with ``-dirty``
    behind it where files were changed, as ``git describe --always --dirty`` says it.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        named = os.environ.get("COMET_COMMIT")
        if not named:
            return None, None
        return named.removesuffix("-dirty"), named.endswith("-dirty")


PACKAGES = ("torch", "transformers", "numpy")
CPU_FACTS = Path("/proc/cpuinfo")


def environment(packages: tuple[str, ...] = PACKAGES) -> dict:
    """Versions and processor of this machine; GPU facts are added by the code that measures."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "device": "cpu",
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    """Its name and architecture; the architecture alone where Linux does not tell a name."""
    machine = platform.machine()
    try:
        lines = CPU_FACTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return machine
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({machine})" if names else machine
