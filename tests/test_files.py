# SPDX-License-Identifier: Apache-2.0
"""Atomic files: what a killed writer left is removed by the next one."""

import os
import platform
import subprocess
import sys

from comet.files import write_text


def dead_process() -> int:
    """Number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_parts_of_killed_writers_are_removed_and_no_others(tmp_path):
    host = platform.node()
    killed = tmp_path / f".records.jsonl.{host}.{dead_process()}.part"
    (killed / "inside").mkdir(parents=True)
    kept = [
        tmp_path / f".records.jsonl.{host}.{os.getppid()}.part",
        tmp_path / f".records.jsonl.another-{host}.{dead_process()}.part",
        tmp_path / f".other.jsonl.{host}.{dead_process()}.part",
    ]
    for path in kept:
        path.touch()
    write_text(tmp_path / "records.jsonl", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "records.jsonl"])
