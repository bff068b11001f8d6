# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the sm_90a W4Ax kernels. Needs nvcc and the disassembler, no GPU."""

import re
import subprocess

import pytest

from comet.kernels.library import INTERFACE_VERSION
from comet.kernels.toolchain import find_tool
from comet.kernels.w4ax_call import instances

pytestmark = pytest.mark.build
KERNEL = re.compile(r"w4ax_kernelINS0_8InstanceILi(\d+)ELi(\d+)ELi(\d+)E.*ELi\d+ELi(\d+)EEEEEv")
# An instruction and the high half of its encoding, which stands on the line below.
INSTRUCTION = re.compile(r"\*/ +([^;\n]+;) +/\* 0x[0-9a-f]+ \*/\n +/\* 0x([0-9a-f]+) \*/")


@pytest.fixture(scope="module")
def machine_code(built_library) -> dict[str, str]:
    """SASS of each W4Ax kernel by mangled name."""
    tool = find_tool("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is missing; install nvidia-cuda-cuobjdump")
    run = subprocess.run(
        [tool, "-sass", "-arch", "sm_90a", built_library.path],
        capture_output=True,
        text=True,
        check=True,
    )
    parts = re.split(r"^\s*Function : ", run.stdout, flags=re.MULTILINE)[1:]
    return {part.split(maxsplit=1)[0]: part for part in parts if KERNEL.search(part.split()[0])}


def test_every_instance_is_compiled(built_library, machine_code):
    known = instances(built_library)
    assert len(machine_code) == len(known)
    tiles = sorted((i.tokens, i.channels) for i in known.values())
    shapes = [tuple(map(int, KERNEL.search(name).groups())) for name in machine_code]
    assert sorted((t, groups * rows * 64 // slices) for t, groups, rows, slices in shapes) == tiles


def test_tensor_cores_multiply_unsigned_by_signed(machine_code):
    for name, code in machine_code.items():
        tokens = KERNEL.search(name)[1]
        products = re.findall(r"IGMMA\.(\S+)", code)
        assert products, name
        assert set(products) == {f"64x{tokens}x32.U8.S8"}, name


def test_main_loop_unpacks_with_five_operations_a_word(machine_code):
    """Between two wgmma groups: a word of 8 codes takes 2 masks, 1 shift and 2 multiply-adds."""
    for name, code in machine_code.items():
        groups = re.split(r"WARPGROUP\.ARRIVE", code)
        words = max(group.count("IGMMA") for group in groups) * 2
        busiest = max(groups, key=lambda group: group.count("0xf0f0f0f"))
        masks = busiest.count("0xf0f0f0f")
        assert masks >= words, name
        assert not re.search(r"\bI2F|\bFMUL|\bFFMA", _between_products(code)), name


def _between_products(code: str) -> str:
    """From the first to the last wgmma: the main loop, without the epilogue."""
    return code[code.index("IGMMA") : code.rindex("IGMMA")]


def test_remote_loads_have_arrived_when_a_block_says_so(machine_code):
    """A peer may end after the second arrival; its fence says nothing of loads from its memory.

    A load sets a scoreboard (bits 110-112 of its 128) until its value has come; instructions wait
    for scoreboards by a mask (bits 116-121).
    """
    arrivals = 0
    for name, code in machine_code.items():
        waiting = set()
        for text, high in INSTRUCTION.findall(code):
            control = int(high, 16) >> 41
            waiting -= {board for board in range(6) if control >> (11 + board) & 1}
            if "UCGABAR_ARV" in text:
                arrivals += 1
                assert not waiting, name
            elif "LD.E.128" in text:
                waiting.add(control >> 5 & 7)
    assert arrivals > 0


def test_nothing_spills_and_bulk_copies_feed_the_kernel(built_library, machine_code):
    listed = [kernel for unit in built_library.info["kernels"].values() for kernel in unit]
    resources = {kernel["name"]: kernel for kernel in listed}
    for name, code in machine_code.items():
        assert resources[name]["spill_stores"] == resources[name]["spill_loads"] == 0, name
        assert not re.search(r"\b(LDL|STL)\b", code), name
        assert "UBLKCP" in code, name
        assert resources[name]["registers"] <= 168, name


def test_launchers_refuse_what_they_cannot_run(built_library):
    for name in ("comet_w4ax_sm90", "comet_tile_weights_sm90"):
        assert "rebuild" in built_library.error_string(built_library.function(name)(None, None))
    assert built_library.function("comet_interface_version")() == INTERFACE_VERSION
