# SPDX-License-Identifier: Apache-2.0
"""The build on small sources: what it finds, what it keeps, what it refuses."""

import ctypes
import json
import os
from pathlib import Path

import pytest

from comet.errors import UserError
from comet.kernels import toolchain as toolchain_module
from comet.kernels.build import LIBRARY_NAME, build, source_hash
from comet.kernels.ptxas import kernel_resources, performance_warnings
from comet.kernels.toolchain import find_toolchain, wheel_root

KERNEL = """
#include "value.h"
__global__ void NAME_kernel(int* out) { out[threadIdx.x] = VALUE + EXTRA; }
extern "C" __attribute__((visibility("default"))) int NAME() { return VALUE; }
"""
SPILLING = """
__global__ void __launch_bounds__(1024, 2) spill(float* x) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[(63 - i) * 1024 + threadIdx.x] = v[i] * v[63 - i];
}
"""


@pytest.fixture
def sources(tmp_path) -> Path:
    """Two small units, one for a single architecture, and a header."""
    folder = tmp_path / "csrc"
    (folder / "include").mkdir(parents=True)
    (folder / "sm90").mkdir()
    (folder / "include" / "value.h").write_text("#pragma once\n#define VALUE 3\n")
    (folder / "first.cu").write_text(KERNEL.replace("NAME", "first"))
    (folder / "sm90" / "second.cu").write_text(KERNEL.replace("NAME", "second"))
    return folder


def build_small(sources, archs=("80", "90a"), **arguments):
    return build(sources.parent / "out", 2, {"EXTRA": 1} | arguments, archs=archs, sources=sources)


@pytest.mark.build
def test_library_and_description(toolchain, sources):
    info = build_small(sources)
    library = sources.parent / "out" / LIBRARY_NAME
    assert ctypes.CDLL(str(library)).second() == 3
    assert info == json.loads((library.parent / "build.json").read_text())
    assert info["architectures"] == ["80", "90a"]
    assert info["source_sha256"] == source_hash(sources)
    assert info["nvcc"] == toolchain.version
    architectures = {
        name: sorted(kernel["architecture"] for kernel in kernels)
        for name, kernels in info["kernels"].items()
    }
    assert architectures == {"first.cu": ["sm_80", "sm_90a"], "sm90/second.cu": ["sm_90a"]}
    assert not list(library.parent.rglob("*.part"))


@pytest.mark.build
def test_only_what_changed_is_compiled(toolchain, sources):
    def times():
        objects = (sources.parent / "out" / "objects").glob("*.o")
        return {path.name: path.stat().st_mtime_ns for path in objects}

    build_small(sources)
    before = times()
    build_small(sources)
    assert times() == before
    (sources / "first.cu").write_text(KERNEL.replace("NAME", "renamed"))
    build_small(sources)
    assert len(times().items() - before.items()) == 1
    (sources / "include" / "value.h").write_text("#pragma once\n#define VALUE 4\n")
    build_small(sources)
    assert len(times()) == 5
    build_small(sources, EXTRA=2)
    assert len(times()) == 7
    assert ctypes.CDLL(str(sources.parent / "out" / LIBRARY_NAME)).renamed() == 4


@pytest.mark.build
def test_architecture_without_sources_is_left_out(toolchain, sources):
    info = build_small(sources, archs=["sm_80"])
    assert list(info["kernels"]) == ["first.cu"]


@pytest.mark.build
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int broken(", "nvcc failed on bad.cu: .*error"),
        ("__global__ void k() { int unused; }", "nvcc failed on bad.cu: .*unused"),
        (SPILLING, "bad.cu: .*spill.* spills .* bytes of registers, 0 are allowed"),
    ],
)
def test_refusals_leave_no_library(toolchain, sources, text, message):
    (sources / "bad.cu").write_text(text)
    with pytest.raises(UserError, match=message):
        build_small(sources, archs=["80"])
    assert not (sources.parent / "out" / LIBRARY_NAME).exists()
    assert not list((sources.parent / "out").rglob(".*"))


@pytest.mark.build
def test_declared_spills_are_allowed(toolchain, sources):
    (sources / "bad.cu").write_text("// comet-build: allow-spills 4096\n" + SPILLING)
    info = build_small(sources, archs=["80"])
    assert info["kernels"]["bad.cu"][0]["spill_stores"] > 0


@pytest.mark.build
def test_pip_wheels_compile_where_no_nvcc_is_on_path(toolchain, sources, monkeypatch):
    if wheel_root() is None:
        pytest.skip("the pip wheels of nvcc are not installed")
    folders = [f for f in os.environ["PATH"].split(":") if not (Path(f) / "nvcc").exists()]
    monkeypatch.setenv("PATH", ":".join(folders))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    assert find_toolchain().nvcc == wheel_root() / "bin" / "nvcc"
    build_small(sources)
    assert ctypes.CDLL(str(sources.parent / "out" / LIBRARY_NAME)).first() == 3


def test_unknown_architecture():
    with pytest.raises(UserError, match="architectures 75 are not supported; choose from 80, 90a"):
        build(Path("unused"), archs=["sm_75"])


def test_missing_host_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"no C\+\+ compiler: .* install it"):
        find_toolchain()


def test_missing_nvcc(monkeypatch, tmp_path):
    cxx = tmp_path / "g++"
    cxx.write_text("#!/bin/sh\n")
    cxx.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(toolchain_module, "wheel_root", lambda: None)
    with pytest.raises(UserError, match="no nvcc in CUDA_HOME, on PATH or among the pip packages"):
        find_toolchain()


def test_old_nvcc(monkeypatch, tmp_path):
    for name in ("g++", "nvcc"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Cuda compilation tools, V11.8.89'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for variable in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(toolchain_module, "wheel_root", lambda: None)
    with pytest.raises(UserError, match="no nvcc of version 12.4 or newer: .* is version 11.8.89"):
        find_toolchain()


def test_ptxas_report():
    text = """ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'
ptxas info    : Function properties for _Z1av
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 768 bytes smem, 496 bytes cmem[0]
ptxas info    : Function properties for helper
    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Compiling entry function '_Z1bv' for 'sm_80'
ptxas info    : Function properties for _Z1bv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers"""
    first, second = kernel_resources(text)
    assert (first.name, first.architecture) == ("_Z1av", "sm_90a")
    assert (first.registers, first.shared_memory) == (64, 768)
    assert (first.stack, first.spill_stores, first.spill_loads) == (16, 8, 12)
    assert (second.registers, second.shared_memory, second.spill_stores) == (10, 0, 0)


@pytest.mark.parametrize("code", ["C7508", "C7510"])
def test_performance_warnings_are_found(code):
    line = f"ptxas info    : ({code}) Potential Performance Loss: in function '_Z1av'"
    assert performance_warnings(f"other\n{line}\nUsed 75081 registers") == [line]
    assert performance_warnings("ptxas info    : (C7519) something else") == []
