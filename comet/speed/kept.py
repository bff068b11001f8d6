# SPDX-License-Identifier: Apache-2.0
"""Finished GEMM cases on disk, one file each: a run that was killed goes on where it stopped."""

from pathlib import Path

from comet.measurements import Measurement, case_id, read_records, write_records
from comet.speed.cases import Job

# Parts of a record that must agree: elsewhere, or with another kernel, a case is measured anew.
SAME_MACHINE = ("device", "driver", "cuda", "engines")


class KeptCases:
    """Records of finished cases in a folder.

    Args:
        folder: made when the first case is kept.
        environment: of the measurements that are made now.
        library: description of the kernel library that is measured now.
    """

    def __init__(self, folder: Path, environment: dict, library: dict) -> None:
        self._folder = folder
        self._now = _identity(environment, library)

    def path(self, job: Job) -> Path:
        """File of a job's records."""
        return self._folder / f"{case_id('gemm', job.case, 'm{m}'.format(**job.case))}.jsonl"

    def finished(self, job: Job) -> list[Measurement] | None:
        """Records of a job that need not run again, or None.

        It runs again where a backend has neither a time nor a shape that it does not take, or
        where machine or library have changed. What was skipped or failed is tried again.
        """
        path = self.path(job)
        if not path.is_file():
            return None
        records = read_records(path)
        settled = {r.backend for r in records if r.metric == "time" and _is_settled(r)}
        known = {_identity(r.environment, r.provenance.get("library")) for r in records}
        if known == {self._now} and settled >= set(job.backends):
            return records
        return None

    def keep(self, job: Job, records: list[Measurement]) -> None:
        """Write the records of a finished job, all or none."""
        write_records(self.path(job), records)


def _is_settled(record: Measurement) -> bool:
    return record.status == "ok" or bool(record.method.get("unsupported"))


def _identity(environment: dict, library: dict | None) -> str:
    known = [environment.get(name) for name in SAME_MACHINE]
    made = [(library or {}).get(name) for name in ("source_sha256", "plans_sha256")]
    return repr((known, made))
