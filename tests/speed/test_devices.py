# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a job may use, read through a made-up NVML."""

import os

import pytest
from nvml_machine import Machine, stranger

from comet.errors import UserError
from comet.speed import capability, nvml
from comet.speed.devices import foreign_processes, nvml_session, usable_gpus, visible_gpus

MIG = {
    "uuid": "GPU-big",
    "name": "NVIDIA A100-SXM4-80GB",
    "capability": [8, 0],
    "mig": [
        {"uuid": "MIG-1", "name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "memory": 2**35},
        {"uuid": "MIG-2", "name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "memory": 2**35},
    ],
}


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def visible(choose=visible_gpus) -> list[str]:
    with nvml_session() as module:
        return [gpu.uuid for gpu in choose(module)]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["GPU-a1", "GPU-a2", "GPU-b"]),
        ("2,0", ["GPU-b", "GPU-a1"]),
        ("GPU-b", ["GPU-b"]),
        ("GPU-a2, GPU-b", ["GPU-a2", "GPU-b"]),
        ("1,9,0", ["GPU-a2"]),
        ("1,-1,0", ["GPU-a2"]),
        ("0,0", ["GPU-a1"]),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(machine, monkeypatch, setting, expected):
    machine.has("GPU-a1", "GPU-a2", "GPU-b")
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert visible() == expected


@pytest.mark.parametrize("setting", ["", "-1", "NoDevFiles", "GPU-a", "GPU-x", "9"])
def test_a_variable_that_names_no_gpu_is_told(machine, monkeypatch, setting):
    machine.has("GPU-a1", "GPU-a2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with pytest.raises(UserError, match=f"is '{setting}', which names no GPU of this machine"):
        visible()
    assert "names no GPU" in capability.detect()["gpu_missing"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["MIG-1", "MIG-2"]),
        ("MIG-2", ["MIG-2"]),
        ("MIG-GPU-big/2/0", ["MIG-2"]),
        ("0", ["MIG-1"]),
    ],
)
def test_instances_of_a_partitioned_gpu(machine, monkeypatch, setting, expected):
    machine.has(MIG)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert visible() == expected
    assert capability.detect()["compute_capability"] == "8.0"


def test_jobs_use_the_gpus_that_are_like_the_largest(machine):
    small = {"uuid": "GPU-t", "name": "NVIDIA T400", "memory": 2**31}
    machine.has(small, "GPU-a", "GPU-b")
    assert visible(usable_gpus) == ["GPU-a", "GPU-b"]
    assert capability.detect()["gpu"] == "NVIDIA Fake 9000"


def test_a_gpu_that_a_scheduler_keeps_from_the_job_is_not_counted(machine, monkeypatch):
    machine.has({"uuid": "GPU-other", "forbidden": True}, "GPU-mine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible() == ["GPU-mine"]


def test_numbers_on_a_machine_with_unlike_gpus_are_ambiguous(machine, monkeypatch):
    machine.has({"uuid": "GPU-t", "name": "NVIDIA T400"}, "GPU-a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UserError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID too, or give UUIDs"):
        visible()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert visible() == ["GPU-a"]


def test_what_can_be_measured_does_not_change_with_the_number_of_gpus(machine, monkeypatch):
    whole = capability.detect()
    assert whole["driver"] == "580.1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert capability.detect() == whole


def test_readings_are_of_the_visible_gpu(machine, monkeypatch):
    machine.has({"uuid": "GPU-a", "clock": 1000}, {"uuid": "GPU-b", "clock": 2000})
    assert nvml.sample()["sm_clock_mhz"] == 1000
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert nvml.sample()["sm_clock_mhz"] == 2000
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert nvml.sample() is None


def test_a_machine_without_gpu_or_driver(machine, monkeypatch):
    machine.has()
    assert capability.detect()["gpu_missing"] == "the NVIDIA driver sees no GPU"
    monkeypatch.delenv("FAKE_NVML")
    found = capability.detect()
    assert found["gpu"] is None
    assert found["gpu_missing"] == "no NVIDIA driver answers (Driver Not Loaded)"


def test_processes_are_named(machine):
    gone = {"pid": 2**22 + 1, "memory": None, "hidden": True}
    with stranger() as child:
        processes = [{"pid": child.pid, "memory": 3 * 2**30}, {"pid": os.getpid()}, gone]
        machine.has({"uuid": "GPU-a", "processes": processes})
        with nvml_session() as module:
            (gpu,) = visible_gpus(module)
            first, second = map(str, foreign_processes(module, gpu))
    assert first == f"pid {child.pid} (sh -c echo ready; read line train, 3.0 GiB)"
    assert second == f"pid {2**22 + 1} (of another user or container)"


def test_memory_tells_of_processes_that_a_container_hides(machine):
    machine.has({"uuid": "GPU-a", "used": 5 * 2**30}, {"uuid": "GPU-b", "used": 2**29})
    with nvml_session() as module:
        hidden, idle = (foreign_processes(module, gpu) for gpu in visible_gpus(module))
    assert [str(process) for process in hidden] == [
        "processes that are not visible from here, 5.0 GiB"
    ]
    assert idle == []
