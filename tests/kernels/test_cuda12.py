# SPDX-License-Identifier: Apache-2.0
"""Machines with a CUDA 12 driver: their requirements, and the library from CUDA 12 compilers."""

import os
import re
from pathlib import Path

import pytest

from comet.bundle.wheels import read_pins
from comet.errors import UserError
from comet.kernels import build as build_module
from comet.kernels.build import build

ROOT = Path(__file__).resolve().parents[2]
# Packages of CUDA 13 in requirements.txt that a CUDA 12 machine has no use for: the compiler.
COMPILER = {"cccl", "crt", "nvcc", "runtime"}
LINE = "ptxas info : (C7515) Potential Performance Loss: wgmma.mma_async are serialized"


def pins(name: str) -> dict[str, str]:
    return {pin.name.lower(): str(pin.specifier) for pin in read_pins(ROOT / name)}


def test_requirements_differ_in_torch_and_its_cuda_only():
    newer, older = pins("requirements.txt"), pins("requirements-cuda12.txt")
    compiler = {f"nvidia-cuda-{part}" for part in COMPILER} | {"nvidia-nvvm"}
    assert newer.keys() - older.keys() == compiler
    added = older.keys() - newer.keys()
    cuda = r"nvidia-.*-cu12|cuda-bindings|cuda-pathfinder|triton"
    assert {name for name in added if not re.fullmatch(cuda, name)} == set()
    assert len(added) > 15
    assert {name for name in newer.keys() & older.keys() if newer[name] != older[name]} == {"torch"}


@pytest.fixture
def sources(tmp_path) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "one.cu").write_text("__global__ void one(int* out) { *out = 1; }\n")
    return folder


@pytest.mark.build
@pytest.mark.parametrize("old", [True, False], ids=["old compiler", "new compiler"])
def test_lost_speed_is_told_of_an_old_compiler_and_refused_of_a_new_one(
    toolchain, sources, tmp_path, monkeypatch, capsys, old
):
    monkeypatch.setattr(build_module, "performance_warnings", lambda report: [LINE])
    monkeypatch.setattr(build_module, "PIPELINING_NVCC", (99, 0) if old else (12, 4))
    if not old:
        with pytest.raises(UserError, match="one.cu loses speed: .*C7515"):
            build(tmp_path / "out", 1, archs=["80"], sources=sources)
        return
    (told,) = build(tmp_path / "out", 1, archs=["80"], sources=sources)["warnings"]
    assert "serialises 1 kernels of one.cu: right, but slow; use nvcc 99.0 or newer" in told
    assert told in capsys.readouterr().err


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_library_from_other_toolkits(tmp_path, monkeypatch):
    """COMET_TEST_CUDA_HOMES names toolkits, separated by colons; 12.4 is the oldest supported."""
    homes = [home for home in os.environ.get("COMET_TEST_CUDA_HOMES", "").split(":") if home]
    if not homes:
        pytest.skip("COMET_TEST_CUDA_HOMES names no CUDA toolkit")
    for number, home in enumerate(homes):
        monkeypatch.setenv("CUDA_HOME", home)
        info = build(tmp_path / str(number), 2)
        assert info["architectures"] == ["80", "90a"]
        slow = info["warnings"]
        assert bool(slow) == (info["nvcc"].startswith("12.") and "12.9" not in info["nvcc"])
        assert not any("sm80" in line for line in slow)
