# SPDX-License-Identifier: Apache-2.0
"""Loaded by every Python of a run: notes when each job's script starts and ends, and on which
device; can make one hang.

Only a process that really ran can write here, so that a job which Slurm starts twice is seen.
"""

import atexit
import json
import os
import sys
import time
from pathlib import Path


def note(what: str, script: str) -> None:
    entry = {
        "what": what,
        "script": script,
        "time": time.time(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    with open(Path(os.environ["COMET_WITNESS"]), "a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


SCRIPTS = [name for name in sys.orig_argv[1:] if "/.snakemake/scripts/" in name]
if SCRIPTS and "COMET_WITNESS" in os.environ:
    # Snakemake runs a copy: tmpabcdef.evaluate.py
    running = SCRIPTS[0].split(".")[-2]
    note("start", running)
    atexit.register(note, "end", running)
    if running == os.environ.get("COMET_HANG"):
        time.sleep(600)
    if running == os.environ.get("COMET_SLOW"):
        time.sleep(4)
