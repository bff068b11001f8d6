# SPDX-License-Identifier: Apache-2.0
"""Make a finished run a committed reference run."""

import re
import subprocess
from pathlib import Path

from comet.errors import UserError
from comet.measurements import KINDS, REPOSITORY, read_records, write_records

# Records in files of their own: studies, whose kind is accuracy, and profiled engines.
STUDIES = ("choices", "kvcache", "protocol", "serving-profile")


def publish(
    source: Path | str,
    name: str,
    repository: Path | str = REPOSITORY,
    keep_failed: bool = False,
) -> list[Path]:
    """Copy the records of a run into ``results/<name>`` of the repository.

    Skipped records are left out: they tell what that machine lacked, not what it measured.

    Args:
        source: folder of the run, such as ``results/local-h200``.
        name: name of the reference run, such as ``h200``.
        keep_failed: publish failed records too, with their reasons, instead of refusing the run;
            for a rival that does not support a case.
        repository: where the reference run goes; its tracked files must be unchanged.

    Returns:
        The files written, one for each kind of record.

    Raises:
        UserError: the name is that of a run, there is nothing to publish, a record is invalid,
            failed or was made from changed files, or the tree is not clean.
    """
    source, repository = Path(source), Path(repository)
    if name.startswith("local-") or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise UserError(
            f"reference run name {name!r} is not usable; use small letters, digits and dashes, "
            "and no leading local-"
        )
    _check_clean(repository)
    found = {kind: source / f"{kind}.jsonl" for kind in (*KINDS, *STUDIES)}
    found = {kind: _checked(path, keep_failed) for kind, path in found.items() if path.is_file()}
    found = {kind: records for kind, records in found.items() if records}
    if not found:
        raise UserError(f"{source} has no measured records to publish; run a target there first")
    written = []
    for kind, records in found.items():
        written.append(repository / "results" / name / f"{kind}.jsonl")
        write_records(written[-1], records)
    return written


def _check_clean(repository: Path) -> None:
    command = ["git", "-C", str(repository), "status", "--porcelain", "--untracked-files=no"]
    status = subprocess.run(command, capture_output=True, text=True)
    if status.returncode != 0:
        raise UserError(f"{repository} is not a git repository; publish from a clone")
    if status.stdout.strip():
        raise UserError(
            f"{repository} has changed files ({status.stdout.split()[1]}); commit or undo them, "
            "so that the reference run names the code it came from"
        )


def _checked(path: Path, keep_failed: bool) -> list:
    records = [record for record in read_records(path) if record.status != "skipped"]
    for record in records:
        what = f"{path}: {record.backend} {record.metric} of {record.case.get('model')}"
        if record.status == "failed" and not keep_failed:
            raise UserError(f"{what} failed ({record.reason}); repair it, or use --keep-failed")
        if record.provenance.get("dirty") is not False or not record.provenance.get("commit"):
            raise UserError(f"{what} was measured from changed files; commit them and run it again")
    return records
