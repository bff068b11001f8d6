# SPDX-License-Identifier: Apache-2.0
"""The default library without a GPU: symbols, machine code, resources, refusals."""

import json
import re
import shutil
import subprocess

import pytest

from comet.errors import UserError
from comet.kernels import library as library_module
from comet.kernels.library import INTERFACE_VERSION, Library, load
from comet.kernels.toolchain import find_tool

pytestmark = pytest.mark.build
LAUNCHERS = ("comet_quantize", "comet_rmsnorm_quantize", "comet_silu_quantize")


@pytest.fixture(scope="module")
def cuobjdump():
    tool = find_tool("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is missing; install nvidia-cuda-cuobjdump")
    return tool


@pytest.fixture(scope="module")
def machine_code(built_library, cuobjdump) -> dict[tuple[str, str], str]:
    """SASS of the quantization kernels: (architecture, mangled name) to text."""
    run = subprocess.run(
        [cuobjdump, "-sass", built_library.path], capture_output=True, text=True, check=True
    )
    found, architecture = {}, ""
    for part in re.split(r"(?=^\s*(?:arch = |Function : ))", run.stdout, flags=re.MULTILINE):
        head = part.split(maxsplit=3)
        if part.lstrip().startswith("arch ="):
            architecture = head[2]
        elif part.lstrip().startswith("Function :") and "quantize_kernel" in head[2]:
            found[architecture, head[2]] = part
    return found


def test_symbols_load_without_a_gpu(built_library):
    for name in LAUNCHERS:
        assert built_library.function(name)
    assert built_library.function("comet_interface_version")() == INTERFACE_VERSION
    assert built_library.error_string(3) == "shape is outside what the kernel supports"
    assert built_library.error_string(1002) == "out of memory"


def test_launchers_refuse_a_foreign_struct(built_library):
    for name in LAUNCHERS:
        assert "rebuild" in built_library.error_string(built_library.function(name)(None, None))


def test_missing_symbol_is_one_clear_line(built_library):
    with pytest.raises(UserError, match="has no comet_nothing: it was built for 80, 90a only"):
        built_library.function("comet_nothing")


def test_both_architectures_and_ptx_are_inside(built_library, cuobjdump):
    def images(kind):
        run = subprocess.run(
            [cuobjdump, kind, built_library.path], capture_output=True, text=True, check=True
        )
        return set(re.findall(r"\.(sm_\w+|compute_\w+)\.", run.stdout))

    assert images("-lelf") >= {"sm_80", "sm_90a"}
    assert images("-lptx") & {"sm_80", "compute_80"}


def test_resources_of_the_quantization_kernels(built_library):
    kernels = [
        kernel
        for name, found in built_library.info["kernels"].items()
        if name.startswith("activations/")
        for kernel in found
    ]
    assert {kernel["architecture"] for kernel in kernels} == {"sm_80", "sm_90a"}
    for kernel in kernels:
        # 1,024 threads must fit, 512 where a warp owns so many blocks that it needs registers
        wide = re.search(r"PlainSourceELi24E|RmsNormSourceELi8E", kernel["name"])
        limit = 128 if wide else 64
        assert kernel["registers"] <= limit, kernel
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0, kernel


def test_quantization_kernels_use_wide_loads_and_no_local_memory(machine_code):
    fast = {key: text for key, text in machine_code.items() if "FastOptions" in key[1]}
    assert {architecture for architecture, _ in fast} == {"sm_80", "sm_90a"}
    for key, text in fast.items():
        assert "LDG.E.64" in text, key
        assert "REDUX" in text, key
        assert not re.search(r"\b(LDL|STL)\b", text), key


def test_stale_sources_are_refused(built_library, tmp_path):
    for name in (built_library.path.name, "build.json"):
        shutil.copy(built_library.path.with_name(name), tmp_path)
    info = tmp_path / "build.json"
    info.write_text(json.dumps(built_library.info | {"source_sha256": "0" * 64}))
    with pytest.raises(UserError, match="was built from other sources than .*; build it with"):
        Library(tmp_path / built_library.path.name)
    info.write_text("{")
    with pytest.raises(UserError, match=r"build.json is missing or damaged .*; build it with"):
        Library(tmp_path / built_library.path.name)


def test_missing_library_and_its_environment_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(UserError, match="none.so does not exist; build it with: comet build"):
        load()


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (["80", "90a"], (9, 0), True),
        (["90a"], (9, 0), True),
        (["80"], (9, 0), True),
        (["80"], (8, 6), True),
        (["80"], (12, 0), True),
        (["90a"], (8, 0), False),
        (["90a"], (10, 0), False),
        (["80", "90a"], (7, 5), False),
    ],
)
def test_which_gpu_runs_which_build(built_library, monkeypatch, architectures, capability, runs):
    monkeypatch.setattr(library_module.torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(library_module.torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setitem(built_library.info, "architectures", architectures)
    if runs:
        built_library.check_device("cuda:0")
    else:
        with pytest.raises(UserError, match="does not run on a GPU .* build it with architecture"):
            built_library.check_device("cuda:0")
