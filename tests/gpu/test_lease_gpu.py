# SPDX-License-Identifier: Apache-2.0
"""A lease of a real GPU, in processes of their own, because CUDA reads the variable once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
START = """
import sys, torch
from comet.errors import UserError
from comet.speed import lease
"""
LEASED = f"""{START}
with lease.gpu_lease("test", timed=False) as found:
    ones = torch.ones(2**20, device="cuda")
    print(torch.cuda.device_count(), torch.cuda.get_device_name() == found.gpu.name)
    print(found.gpu.uuid.removeprefix("GPU-") in str(torch.cuda.get_device_properties(0).uuid))
"""
STRANGER = f"""{START}
ones = torch.ones(2**29, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""
REFUSED = f"""{START}
lease.SETTLE_SECONDS = 1.0
try:
    with lease.gpu_lease("test", timed=True):
        print("not refused")
except UserError as error:
    print(error)
"""


def environment(tmp_path, **variables: str) -> dict[str, str]:
    fixed = {"PYTHONPATH": str(REPOSITORY), "COMET_GPU_LOCKS": str(tmp_path)}
    return os.environ | fixed | variables


def run(program: str, tmp_path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_sees_the_leased_gpu_alone(tmp_path):
    assert run(LEASED, tmp_path).split() == ["1", "True", "True"]


def test_a_process_without_a_lease_is_refused_and_named(tmp_path):
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    only = {"CUDA_VISIBLE_DEVICES": uuid}
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER],
        env=environment(tmp_path, **only),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stranger.stdout.readline() == "ready\n"
        message = run(REFUSED, tmp_path, **only)
    finally:
        stranger.communicate("")
    assert "is used by" in message
    assert f"pid {stranger.pid}" in message or "not visible from here" in message
