# SPDX-License-Identifier: Apache-2.0
"""One GPU for one job: a file lock a device, taken before torch starts CUDA.

The lock is the kernel's (flock), so that the device of a killed holder is free at once. A child of
the holder inherits the device through the environment and takes no lease of its own.
"""

import contextlib
import fcntl
import json
import os
import random
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from comet.errors import UserError
from comet.speed.devices import VISIBLE, Gpu, Process, foreign_processes, nvml_session, usable_gpus

LOCKS = "COMET_GPU_LOCKS"
INHERITED = "COMET_GPU_LEASE"
# Not the temporary folder: jobs of one machine may have different ones.
DEFAULT_LOCKS = "/tmp/comet-gpu-locks"
# A process that has just ended is listed, and its memory held, for a moment longer.
SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.1, 0.3
REPEAT_SECONDS = 300.0


@dataclass(frozen=True)
class LeaseOptions:
    """What to do where no GPU is free; the section ``gpu`` of the configuration.

    Attributes:
        busy: ``refuse`` or ``share`` a GPU on which a process without a lease computes. A job whose
            time is no result shares it in both cases, when no idle one is there.
        wait_minutes: how long to wait for a GPU that other jobs have leased.
        side_by_side: jobs whose time is no result may lease a GPU together where none is free.
    """

    busy: str = "refuse"
    wait_minutes: float = 60.0
    side_by_side: bool = False


@dataclass(frozen=True)
class Lease:
    """A GPU that this process has to itself, but for the processes it shares it with."""

    gpu: Gpu
    shared_with: tuple[Process, ...] = ()

    def facts(self) -> dict:
        """For the environment of a record."""
        facts = {"gpu_uuid": self.gpu.uuid}
        if self.shared_with:
            facts["gpu_shared_with"] = [str(process) for process in self.shared_with]
        return facts


_current: Lease | None = None


def lease_facts() -> dict:
    """What the environment of a record says of the lease that this process holds, if any."""
    return _current.facts() if _current else {}


@contextmanager
def job_gpu(job, timed: bool, optional: bool = False) -> Iterator[Lease | None]:
    """The GPU of a workflow job; None for a job that computes on the processor.

    Args:
        job: Snakemake's description of the job; its parameter ``device`` decides, where it has
            none its resource ``gpu``.
        timed, optional: as in ``gpu_lease``.

    Raises:
        UserError: as ``gpu_lease``.
    """
    asked = "cuda" if job.resources.get("gpu", 0) else "cpu"
    if job.params.get("device", asked) == "cpu":
        yield None
        return
    options = LeaseOptions(**job.config.get("gpu", {}))
    with gpu_lease(str(job.output[0]), timed, options, optional) as lease:
        yield lease


@contextmanager
def gpu_lease(
    job: str, timed: bool, options: LeaseOptions = LeaseOptions(), optional: bool = False
) -> Iterator[Lease | None]:
    """Take one of the GPUs that ``CUDA_VISIBLE_DEVICES`` allows, and make it the only visible one.

    Args:
        job: what it is for, shown to those who wait.
        timed: whether times are the result; a busy GPU is then refused, unless the options say
            otherwise.
        options: what to do where no GPU is free.
        optional: whether a machine without a GPU gives None, for records that say so.

    Raises:
        UserError: there is no GPU, each one is busy, or none became free in time.
        RuntimeError: torch has started CUDA already.
    """
    global _current
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("a GPU is leased before torch starts CUDA")
    try:
        lease, lock = _take(job, timed, options)
    except _NoGpu as missing:
        if not optional:
            raise UserError(
                f"{job} needs a GPU, but {missing}; run it where there is one, or, where a device "
                "can be chosen, on cpu"
            ) from None
        yield None
        return
    variables = lease.gpu.variables() | {INHERITED: lease.gpu.uuid}
    before, held = {name: os.environ.get(name) for name in variables}, _current
    os.environ |= variables
    _current = lease
    try:
        yield lease
    finally:
        _current = held
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if lock is not None:
            _release(lock)


class _NoGpu(UserError):
    pass


def _take(job: str, timed: bool, options: LeaseOptions) -> tuple[Lease, int | None]:
    """The lease and its open lock; no lock where a parent process holds it."""
    with contextlib.ExitStack() as stack:
        try:
            module = stack.enter_context(nvml_session())
            gpus = usable_gpus(module)
        except UserError as error:
            raise _NoGpu(str(error)) from None
        if [os.environ.get(INHERITED)] == [gpu.uuid for gpu in gpus]:
            return Lease(gpus[0]), None
        return _wait(module, gpus, job, timed, options)


def _wait(
    module, gpus: list[Gpu], job: str, timed: bool, options: LeaseOptions
) -> tuple[Lease, int]:
    strict, minutes = timed and options.busy == "refuse", options.wait_minutes
    together = options.side_by_side and not timed
    start = time.monotonic()
    spoken = start - REPEAT_SECONDS
    while True:
        leased, busy = [], []
        settled = time.monotonic() - start > SETTLE_SECONDS
        for gpu in gpus:
            lock = _lock(gpu)
            if lock is None:
                leased.append(gpu)
                continue
            processes = foreign_processes(module, gpu)
            if not processes or (settled and not strict):
                _write_holder(lock, job)
                if processes:
                    _say(f"{gpu} is shared with {_joined(processes)}")
                if together:
                    # Not in one step for the kernel: a job that slips in between is waited for.
                    fcntl.flock(lock, fcntl.LOCK_SH)
                return Lease(gpu, tuple(processes)), lock
            os.close(lock)
            busy.append(f"{gpu} is used by {_joined(processes)}")
        joined = _join(leased, job) if together else None
        if joined:
            return joined
        if busy and not leased and settled:
            raise UserError(
                f"{'; '.join(busy)}: times would be wrong; end that, choose another GPU with "
                f"{VISIBLE}, or allow it with the config key gpu.busy: share (--busy-gpu share)"
            )
        waited = time.monotonic() - start
        holders = "; ".join([f"{gpu} is leased by {_holder(gpu)}" for gpu in leased] + busy)
        if waited > minutes * 60:
            raise UserError(
                f"no GPU became free in {minutes:g} minutes: {holders}; run again later, or set "
                "the config key gpu.wait_minutes (--gpu-wait)"
            )
        if time.monotonic() - spoken > REPEAT_SECONDS and waited > 1:
            spoken = time.monotonic()
            _say(f"{job} waits up to {minutes:g} minutes for a GPU: {holders}")
        time.sleep(random.uniform(*POLL_SECONDS))


def _join(leased: list[Gpu], job: str) -> tuple[Lease, int] | None:
    """A GPU that other jobs have leased together, and its lock; None where each has one holder."""
    for gpu in random.sample(leased, len(leased)):
        lock = _lock(gpu, fcntl.LOCK_SH)
        if lock is not None:
            _write_holder(lock, job)
            return Lease(gpu), lock
    return None


def _joined(processes: list[Process]) -> str:
    return ", ".join(map(str, processes))


def _say(line: str) -> None:
    """One line into the log of the job and onto the terminal."""
    for stream in dict.fromkeys((sys.stderr, sys.__stderr__)):
        print(f"comet: {line}", file=stream, flush=True)


def _lock_path(gpu: Gpu) -> Path:
    name = "".join(c if c.isalnum() or c == "-" else "_" for c in gpu.uuid)
    return Path(os.environ.get(LOCKS, DEFAULT_LOCKS), f"{name}.lock")


def _lock(gpu: Gpu, kind: int = fcntl.LOCK_EX) -> int | None:
    """The open and locked file of a GPU, None while another process holds it; ``kind`` is flock's,
    ``LOCK_SH`` for a lock that several hold."""
    path = _lock_path(gpu)
    try:
        lock = _open_shared(path)
    except OSError as error:
        raise UserError(
            f"cannot open the lock {path} of a GPU ({error.strerror}); make its folder writable "
            f"for all users, or set {LOCKS} to a folder of this machine that is"
        ) from None
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        # A cleaner of old files may have put another file in its place.
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def _open_shared(path: Path) -> int:
    """Open a file that every user of the machine may lock.

    Two steps, because Linux may refuse to open another user's file in a shared folder with O_CREAT.
    """
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o777 | stat.S_ISVTX)
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(lock, 0o666)
    return lock


def _write_holder(lock: int, job: str) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "job": job}
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(holder).encode(), 0)


def _release(lock: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not while others hold it too
        os.ftruncate(lock, 0)
    os.close(lock)


def _holder(gpu: Gpu) -> str:
    try:
        holder = json.loads(_lock_path(gpu).read_text(encoding="utf-8"))
        return f"pid {holder['pid']} on {holder['host']} ({holder['job']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "a job that is just starting"
