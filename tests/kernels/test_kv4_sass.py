# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the KV4 kernels. Needs nvcc and the disassembler, no GPU."""

import ctypes
import re
import subprocess

import pytest
from kv4_inputs import filled_state

from comet.kernels import kv4_call
from comet.kernels.plan_kv4 import Plan
from comet.kernels.toolchain import find_tool

pytestmark = pytest.mark.build
DECODE = re.compile(r"decode_kernelINS0_8InstanceINS0_4(?:Fp|Bf)16ELi(\d+)ELi(\d+)E")
COPIES = {"sm_90a": "UBLKCP", "sm_80": "LDGSTS.E.BYPASS.128"}


@pytest.fixture(scope="module", params=sorted(COPIES))
def machine_code(request, built_library) -> tuple[str, dict[str, str]]:
    """Architecture, and SASS of each decode kernel by mangled name."""
    tool = find_tool("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is missing; install nvidia-cuda-cuobjdump")
    command = [tool, "-sass", "-arch", request.param, built_library.path]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    parts = re.split(r"^\s*Function : ", run.stdout, flags=re.MULTILINE)[1:]
    kernels = {part.split(maxsplit=1)[0]: part for part in parts}
    return request.param, {name: code for name, code in kernels.items() if DECODE.search(name)}


def test_every_instance_is_compiled(machine_code):
    _, kernels = machine_code
    shapes = sorted(tuple(map(int, DECODE.search(name).groups())) for name in kernels)
    assert shapes == sorted([(64, 1), (64, 2), (128, 1), (128, 2)] * 2)


def test_codes_are_unpacked_with_four_operations_a_word(machine_code):
    """Three masks and one choice of bytes for eight codes, no conversion to float.

    K's codes are unpacked at one place of the code, V's at two: behind sealed and unfinished K.
    """
    for name, code in machine_code[1].items():
        dim, tiles = map(int, DECODE.search(name).groups())
        words = 3 * dim // 4  # D / 4 of K, D / 4 of V twice
        for mask, count in (("0xff00ff", words), ("0xf000f", 2 * words)):
            assert len(re.findall(rf"LOP3\S* [^;]*{mask},", code)) == count, name
        assert len(re.findall(r"PRMT \S+, \S+, 0x4341, RZ", code)) == words, name
        # A product a word and tile of heads; K's words have another for what the rounding of the
        # scaled query took. Then D / 16 for q . z, 4 for the sums of V, 8 for a tail.
        products = words + dim // 4 + dim // 16 + 2 * 4 + 8
        assert code.count("HMMA.16816.F32") == tiles * products, name
        assert len(re.findall(r"\bMOVM", code)) == tiles * 16, name


def test_registers_suffice_and_pages_are_copied_in_the_background(built_library, machine_code):
    architecture, kernels = machine_code
    listed = [kernel for unit in built_library.info["kernels"].values() for kernel in unit]
    resources = {k["name"]: k for k in listed if k["architecture"] == architecture}
    for name, code in kernels.items():
        tiles = int(DECODE.search(name)[2])
        assert resources[name]["registers"] <= (168 if tiles == 1 else 255), name
        assert resources[name]["spill_stores"] == resources[name]["spill_loads"] == 0, name
        assert not re.search(r"\b(LDL|STL)\b", code), name
        assert COPIES[architecture] in code, name


def test_launchers_refuse_what_they_cannot_run(built_library):
    state, keys, _ = filled_state([64], 64, 1, kv4_call.DTYPES[0])
    launcher = built_library.function("comet_kv4_decode", ctypes.c_void_p, ctypes.c_void_p)
    for name, value, word in (
        ("warps", 13, "option"),
        ("stages", 1, "option"),
        ("scale", -1.0, "option"),
        ("head_dim", 96, "shape"),
        ("heads", 17, "shape"),
        ("dtype", 7, "fp16"),
        ("partials", 8, "aligned"),
    ):
        query, plan = keys[:1], Plan(1, 2, 1)
        arguments = kv4_call.decode_arguments(query, state, 0.125, None, query, plan, 16, 16)
        arguments.size = ctypes.sizeof(arguments)
        setattr(arguments, name, value)
        assert word in built_library.error_string(launcher(ctypes.addressof(arguments), None))
    for name in ("comet_kv4_decode", "comet_kv4_append", "comet_kv4_unpack"):
        assert "rebuild" in built_library.error_string(built_library.function(name)(None, None))
