# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node with two pretended A100s, started for the tests and taken away again."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# Snakemake's job step drops SLURM_CONF, so that only the system's own place works.
ETC = Path("/etc/slurm")
MARK = "# written by comet's tests; may be deleted\n"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol", "scancel")
# More processors than a small machine has, so that jobs run side by side; jobs wait, not compute.
SLURM_CONF = """ClusterName=comet
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
MpiDefault=none
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/d
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
MinJobAge=1200
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000000 Gres=gpu:a100:2 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes={host} MaxTime=INFINITE State=UP
"""
GRES_CONF = """AutoDetect=off
NodeName={host} Name=gpu Type=a100 File=/dev/null
NodeName={host} Name=gpu Type=a100 File=/dev/zero
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None when it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if absent:
        return f"{', '.join(absent)} not found: install the packages slurm-wlm and munge"
    if os.geteuid() != 0:
        return "starting Slurm needs root"
    configured = ETC / "slurm.conf"
    if configured.exists() and not configured.read_text().startswith(MARK):
        return f"{configured} belongs to this machine's own Slurm"
    return None


def search_path() -> str:
    """PATH with the folders of daemons, which root's own often lacks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


@dataclass
class Job:
    """What the controller knows of one job.

    Attributes:
        number: its id.
        rule: the rule it ran, from the comment that Snakemake's plugin gives it.
        fields: everything that ``scontrol show job -d`` prints, by name.
    """

    number: str
    rule: str
    fields: dict[str, str]


class Cluster:
    """Daemons whose state lies in one folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.host = socket.gethostname().split(".")[0]
        self.pid_files = {name: state / f"{name}.pid" for name in ("slurmctld", "slurmd")}

    def start(self) -> None:
        stop_left_over()
        for name in ("ctld", "d"):
            (self.state / name).mkdir(parents=True)
        ETC.mkdir(exist_ok=True)
        for name, text in (("slurm.conf", SLURM_CONF), ("gres.conf", GRES_CONF)):
            filled = text.format(host=self.host, state=self.state)
            (ETC / name).write_text(MARK + filled, encoding="utf-8")
        self._start_munge()
        self._daemon("slurmctld", "-c")
        self._daemon("slurmd")
        wait_until(lambda: self._ask("sinfo", "-h", "-o", "%t", "-p", "gpu") == "idle", 30)

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """The controller is down for the length of the block; nodes and jobs go on."""
        kill(self.pid_files["slurmctld"])
        try:
            yield
        finally:
            self._daemon("slurmctld")

    def stop(self) -> None:
        for name in list(self.pid_files):
            kill(self.pid_files[name])
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).unlink(missing_ok=True)

    def jobs(self, folder: Path | None = None) -> list[Job]:
        """Jobs that the controller remembers, those of one working directory."""
        found = []
        for text in self._ask("scontrol", "show", "job", "-d").split("\n\n"):
            fields = dict(re.findall(r"([A-Za-z/:]+)=(\S*)", text))
            if fields.get("JobId") and folder in (None, Path(fields["WorkDir"])):
                rule = fields.get("Comment", "").removeprefix("rule_").split("_wildcards_")[0]
                found.append(Job(fields["JobId"], rule, fields))
        return found

    def cancel(self, job: Job) -> None:
        subprocess.run(["scancel", job.number], check=True)

    def logs(self) -> str:
        paths = sorted(self.state.glob("*.log"))
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in paths)

    def _start_munge(self) -> None:
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
            return
        # As the package's own service does it; the key comes with the package.
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "/run/munge"], check=True)
        self._daemon("munged", user="munge")
        self.pid_files["munged"] = Path("/run/munge/munged.pid")

    def _daemon(self, name: str, *options: str, user: str | None = None) -> None:
        command = [shutil.which(name, path=search_path()), *options]
        if user:
            command = ["runuser", "-u", user, "--", *command]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"{name} does not start: {done.stderr}\n{self.logs()}")

    def _ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()


def kill(pid_file: Path) -> None:
    """End the daemon of a pid file, if it runs."""
    pid = int(pid_file.read_text()) if pid_file.exists() else 0
    if pid and Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30)


def stop_left_over() -> None:
    """End the daemons of tests that were killed."""
    configured = ETC / "slurm.conf"
    if configured.exists():
        for path in re.findall(r"^Slurm.*PidFile=(.*)$", configured.read_text(), re.MULTILINE):
            kill(Path(path))


@contextmanager
def running_cluster(state: Path) -> Iterator[Cluster]:
    """A started cluster, stopped at the end whatever happens."""
    cluster = Cluster(state)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait_until(ready, seconds: float) -> None:
    """Return as soon as ``ready`` says so; fail the test after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            pytest.fail(f"not ready within {seconds} seconds")
        time.sleep(0.2)
