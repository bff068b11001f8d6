# SPDX-License-Identifier: Apache-2.0
"""Many processes that want few GPUs: ``python lease_crowd.py COUNT FOLDER``.

Each process marks the device that it got by a file that must not be there yet, holds it for a
moment, and removes the mark. Every tenth is killed while it holds a device; its mark names it, so
that the next holder can tell that it is dead. Prints what went wrong, one line each.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from comet.speed.lease import LeaseOptions, gpu_lease


def take_a_turn(number: int, folder: Path) -> None:
    with gpu_lease(f"job {number}", timed=True, options=LeaseOptions(wait_minutes=2)) as lease:
        mark = folder / lease.gpu.uuid
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            _check_that_it_is_dead(number, mark)
        mark.write_text(str(os.getpid()))
        if os.environ["CUDA_VISIBLE_DEVICES"] != str(lease.gpu.index):
            raise AssertionError(f"job {number} sees {os.environ['CUDA_VISIBLE_DEVICES']}")
        time.sleep(random.uniform(0, 0.01))
        if mark.read_text() != str(os.getpid()):
            raise AssertionError(f"job {number} shared {lease.gpu.uuid}")
        with open(folder / "turns", "a", encoding="utf-8") as turns:
            turns.write(f"{lease.gpu.uuid}\n")
        if number % 10 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        mark.unlink()


def _check_that_it_is_dead(number: int, mark: Path) -> None:
    """A killed process gives its lock back a moment before it counts as dead."""
    holder, deadline = mark.read_text(), time.monotonic() + 1
    while _lives(holder):
        if time.monotonic() > deadline:
            raise AssertionError(f"job {number} got {mark.name}, which process {holder} holds")
        time.sleep(0.01)


def _lives(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in "ZX"


def main(count: int, folder: Path) -> int:
    children = {}
    for number in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                take_a_turn(number, folder)
                status = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            finally:
                os._exit(status)
        children[child] = number
    wrong = 0
    for child, number in children.items():
        status = os.waitpid(child, 0)[1]
        expected = signal.SIGKILL if number % 10 == 0 else 0
        if status != expected:
            print(f"job {number} ended with status {status}")
            wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
