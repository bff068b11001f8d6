# SPDX-License-Identifier: Apache-2.0
"""The tuners time kernels on a GPU that they have leased."""

import os

import pytest

from comet.speed import lease, tune_kv4, tune_sm90

TUNERS = [(tune_kv4, []), (tune_sm90, ["--shapes", "4096x4096"])]
STRANGER = {"uuid": "GPU-a", "processes": [{"pid": 1, "memory": 2**31}]}


@pytest.fixture(params=TUNERS, ids=["kv4", "sm90"])
def tuner(request, monkeypatch):
    """Runs a tuner that notes what it finds instead of timing kernels."""
    module, needed = request.param
    found = []

    def note(options) -> None:
        found.append((os.environ["CUDA_VISIBLE_DEVICES"], lease.lease_facts()))

    monkeypatch.setattr(module, "tune", note)

    def run(*arguments: str) -> list:
        module.main([*needed, *arguments])
        return found

    return run


def test_a_tuner_sees_only_the_gpu_that_it_has_leased(holder, tuner):
    assert holder()[1] == "GPU-a"
    assert tuner() == [("1", {"gpu_uuid": "GPU-b"})]
    assert lease.lease_facts() == {}


def test_a_tuner_leaves_a_busy_gpu_alone(machine, tuner, capsys):
    machine.has(STRANGER)
    with pytest.raises(SystemExit) as ended:
        tuner()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("comet: GPU 0 (NVIDIA Fake 9000) is used by pid 1 ")
    assert "times would be wrong" in told and told.count("\n") == 1


def test_a_tuner_shares_a_gpu_on_demand(machine, tuner):
    machine.has(STRANGER)
    ((visible, facts),) = tuner("--busy-gpu", "share")
    assert visible == "0"
    assert "pid 1 " in facts["gpu_shared_with"][0]


def test_a_tuner_without_a_gpu_says_so_in_one_line(machine, tuner, monkeypatch, capsys):
    monkeypatch.delenv("FAKE_NVML")
    with pytest.raises(SystemExit):
        tuner()
    told = capsys.readouterr().err
    assert "needs a GPU, but no NVIDIA driver answers" in told
    assert told.count("\n") == 1
