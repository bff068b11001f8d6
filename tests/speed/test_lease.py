# SPDX-License-Identifier: Apache-2.0
"""GPU leases: each device has one holder, and nothing but a living holder keeps it."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvml_machine import HOLD, stranger

from comet.errors import UserError
from comet.speed import lease
from comet.speed.lease import LeaseOptions, gpu_lease, job_gpu

CROWD = Path(__file__).with_name("lease_crowd.py")
NOW = LeaseOptions(wait_minutes=0)


def test_two_hundred_processes_and_four_gpus(machine, tmp_path):
    machine.has("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    folder = tmp_path / "marks"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(CROWD), "200", str(folder)],
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""
    turns = (folder / "turns").read_text().split()
    assert len(turns) == 200
    assert set(turns) == {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}


def test_the_device_of_a_killed_holder_is_free_within_a_second(machine, holder):
    machine.has("GPU-a")
    process, uuid = holder()
    with pytest.raises(UserError, match="no GPU became free"), gpu_lease("next", True, NOW):
        pass
    process.kill()
    start = time.monotonic()
    with gpu_lease("next", timed=True) as found:
        assert time.monotonic() - start < 1
        assert found.gpu.uuid == uuid


def test_only_the_leased_gpu_is_visible_and_only_while_it_is_leased(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    with gpu_lease("job", timed=True) as found:
        assert found.gpu.uuid == "GPU-b"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert lease.lease_facts() == {"gpu_uuid": "GPU-b"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert not {"COMET_GPU_LEASE", "CUDA_DEVICE_ORDER"} & set(os.environ)
    assert lease.lease_facts() == {}


def test_a_mig_instance_is_leased_by_its_uuid(machine):
    machine.has({"uuid": "GPU-a", "mig": [{"uuid": "MIG-1"}, {"uuid": "MIG-2"}]})
    with gpu_lease("job", timed=True) as found:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == found.gpu.uuid == "MIG-1"


def test_a_child_of_the_holder_has_the_device_already(machine):
    machine.has("GPU-a")
    with gpu_lease("parent", timed=True):
        command = [sys.executable, "-c", HOLD]
        child = subprocess.run(
            command, env=machine.environment(), input="", capture_output=True, text=True, timeout=20
        )
        assert child.stdout.strip() == "GPU-a", child.stderr
        with gpu_lease("nested", timed=True, options=NOW) as nested:
            assert nested.gpu.uuid == "GPU-a"
        with pytest.raises(BlockingIOError):
            lock_elsewhere(machine)


def lock_elsewhere(machine) -> None:
    import fcntl

    with open(machine.locks / "GPU-a.lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_is_told_for_whom_and_gives_up_in_time(machine, holder, capsys):
    processes = [holder()[0] for _ in range(2)]
    options = LeaseOptions(wait_minutes=1.5 / 60)
    with pytest.raises(UserError) as told, gpu_lease("the next job", True, options):
        pass
    waited = capsys.readouterr().err
    assert "the next job waits up to 0.025 minutes for a GPU" in waited
    for text in (waited, str(told.value)):
        for process in processes:
            assert f"is leased by pid {process.pid} on " in text
    assert "set the config key gpu.wait_minutes (--gpu-wait)" in str(told.value)


def test_jobs_without_times_lease_a_gpu_together(machine, holder):
    machine.has("GPU-a", "GPU-b")
    first, second, third = (holder("together") for _ in range(3))
    assert {first[1], second[1]} == {"GPU-a", "GPU-b"} > {third[1]}
    for timed in (True, False):
        with pytest.raises(UserError, match="leased by pid"), gpu_lease("alone", timed, NOW):
            pass
    others = [process for process, gpu in (first, second) if gpu == third[1]]
    machine.has(third[1])
    for process in (*others, third[0]):
        process.communicate("")
        free = process is third[0]
        told = (machine.locks / f"{third[1]}.lock").read_text()
        assert bool(told) is not free
    together = LeaseOptions(wait_minutes=0, side_by_side=True)
    holder()
    with pytest.raises(UserError, match="leased by pid"), gpu_lease("late", False, together):
        pass


@pytest.fixture
def busy():
    """The first of the two GPUs, on which a process without a lease computes."""
    with stranger() as child:
        processes = [{"pid": child.pid, "memory": 2**31}]
        yield {"uuid": "GPU-a", "used": 2**31, "processes": processes}


def test_a_busy_gpu_is_left_alone_while_another_is_idle(machine, busy):
    machine.has(busy, "GPU-b")
    with gpu_lease("job", timed=True) as found:
        assert found.gpu.uuid == "GPU-b"


def test_a_timed_job_refuses_a_busy_gpu_in_one_line(machine, busy):
    machine.has(busy)
    with pytest.raises(UserError) as told, gpu_lease("job", timed=True):
        pass
    assert "GPU 0 (NVIDIA Fake 9000) is used by pid" in str(told.value)
    assert "train, 2.0 GiB)" in str(told.value)
    assert "gpu.busy: share (--busy-gpu share)" in str(told.value)


@pytest.mark.parametrize(("timed", "setting"), [(True, "share"), (False, "refuse")])
def test_a_busy_gpu_is_shared_on_demand_or_where_times_are_no_result(
    machine, busy, capsys, timed, setting
):
    machine.has(busy)
    with gpu_lease("job", timed, LeaseOptions(busy=setting)) as found:
        (shared,) = found.facts()["gpu_shared_with"]
    assert "train" in shared
    assert "GPU 0 (NVIDIA Fake 9000) is shared with pid" in capsys.readouterr().err


def test_a_process_that_is_just_ending_is_waited_for(machine, busy, monkeypatch):
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 30.0)
    machine.has(busy)
    monkeypatch.setattr(time, "sleep", lambda _: machine.has("GPU-a"))
    with gpu_lease("job", timed=True) as found:
        assert found.shared_with == ()


def test_a_busy_gpu_is_not_waited_for_but_a_leased_one_is(machine, busy, holder):
    machine.has(busy, "GPU-b")
    holder()
    message = "no GPU became free in 0 minutes.*leased.*used by"
    with pytest.raises(UserError, match=message), gpu_lease("job", True, NOW):
        pass


def test_without_a_gpu(machine, monkeypatch):
    monkeypatch.delenv("FAKE_NVML")
    with gpu_lease("job", timed=True, optional=True) as found:
        assert found is None
    message = "out.jsonl needs a GPU, but no NVIDIA driver answers"
    with pytest.raises(UserError, match=message), gpu_lease("out.jsonl", timed=True):
        pass


def test_a_folder_of_locks_that_cannot_be_written(machine, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("COMET_GPU_LOCKS", str(file / "locks"))
    message = "cannot open the lock .* set COMET_GPU_LOCKS"
    with pytest.raises(UserError, match=message), gpu_lease("job", timed=True):
        pass


def test_every_user_of_the_machine_may_lock(machine):
    with gpu_lease("job", timed=True):
        assert machine.locks.stat().st_mode & 0o7777 == 0o1777
        assert (machine.locks / "GPU-a.lock").stat().st_mode & 0o777 == 0o666


def test_a_lock_on_a_file_that_a_cleaner_removed_is_none(machine, monkeypatch):
    with gpu_lease("job", timed=True) as found:
        gpu = found.gpu
    path = machine.locks / f"{gpu.uuid}.lock"
    opened = os.open(path, os.O_RDWR)
    path.unlink()
    monkeypatch.setattr(lease, "_open_shared", lambda _: opened)
    assert lease._lock(gpu) is None


@pytest.mark.parametrize(
    ("params", "gpus", "leased"),
    [({}, 0, False), ({}, 1, True), ({"device": "cpu"}, 1, False), ({"device": "cuda"}, 1, True)],
)
def test_a_workflow_job_takes_a_gpu_for_its_device(machine, params, gpus, leased):
    section = {"busy": "share", "wait_minutes": 1}
    fields = {"output": ["out"], "config": {"gpu": section}}
    job = SimpleNamespace(params=params, resources={"gpu": gpus}, **fields)
    with job_gpu(job, timed=False) as found:
        assert (found is not None) == leased


def test_a_lease_after_torch_has_started_cuda_is_a_mistake(machine, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    message = "before torch starts CUDA"
    with pytest.raises(RuntimeError, match=message), gpu_lease("job", timed=True):
        pass
