# SPDX-License-Identifier: Apache-2.0
"""The sm_80 W4Ax operator without a GPU: results, fakes, refusals, plans, machine code."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from sm80_inputs import activations, random_activations, random_weight
from torch._subclasses.fake_tensor import FakeTensorMode

from comet.errors import UserError
from comet.formats.activations import quantize_activations as quantize
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.weights import pack_weight
from comet.kernels.activations import quantize_activations
from comet.kernels.build import SOURCES, build
from comet.kernels.library import Library
from comet.kernels.operands import operand_of
from comet.kernels.reference import w4ax_linear_reference
from comet.kernels.toolchain import find_tool
from comet.kernels.variants import VARIANTS
from comet.kernels.w4ax_sm80 import prepare_weight_sm80, w4ax_linear_sm80
from comet.kernels.w4ax_sm80_call import W4axSm80Args, instances, plan, work_of
from comet.schedule.stream_k import StreamK

LAYOUT = BlockLayout(576, 3, 2)


def build_test(test):
    """A test that needs the compiler; such tests share a worker."""
    return pytest.mark.build(test)


# Loads and stores aside, all that SASS does for one more word is its conversion.
CONVERSION = re.compile(r"\bU?(LOP3|SHF|PRMT|SGXT|BFE|LEA|IMAD|IADD3|I2I|I2IP|BMSK)\b")
PROBE = """
#include "comet/sm80/convert.cuh"
extern "C" __global__ void probe_COUNT(const uint4* words, uint4* out) {
  uint4 w[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) w[i] = words[i * 32 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    uint4 low, high;
    comet::sm80::convert_interleaved<FAST>(w[i].x, low.x, high.x);
    comet::sm80::convert_interleaved<FAST>(w[i].y, low.y, high.y);
    comet::sm80::convert_interleaved<FAST>(w[i].z, low.z, high.z);
    comet::sm80::convert_interleaved<FAST>(w[i].w, low.w, high.w);
    out[i * 64 + threadIdx.x] = low;
    out[i * 64 + 32 + threadIdx.x] = high;
  }
}
"""

# The kernel's schedule, run on the CPU: the first block of each run, then the owner of each block.
SCHEDULE = """
#include <cstdio>
#include <cstdlib>
#include "comet/sm80/schedule.cuh"
int main(int, char** arguments) {
  comet::sm80::GemmParams p = {};
  const int tiles = atoi(arguments[1]);
  p.int4_blocks = atoi(arguments[2]);
  p.blocks = p.int4_blocks + atoi(arguments[3]);
  p.runs = atoi(arguments[4]);
  p.total_weight = tiles * comet::sm80::tile_weight(p.int4_blocks, p.blocks);
  for (int run = 0; run <= p.runs; ++run) printf("%d ", comet::sm80::run_begin(p, run));
  for (int tile = 0; tile < tiles; ++tile) {
    for (int b = 0; b < p.blocks; ++b) printf("%d ", comet::sm80::owner(p, tile, b));
  }
}
"""


@pytest.mark.parametrize("layout", [LAYOUT, BlockLayout(200, 2, 0), BlockLayout(128, 0, 1)])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cpu_operator_equals_the_reference(layout, interleaved, dtype):
    weight, quantized = random_weight(40, layout), random_activations(7, layout)
    prepared = prepare_weight_sm80(weight, "cpu", interleaved)
    for bias in (None, torch.randn(40)):
        found = w4ax_linear_sm80(operand_of(quantized, "sm80"), prepared, bias, dtype)
        assert torch.equal(found, w4ax_linear_reference(quantized, weight, bias, dtype))


def test_quantizer_and_gemm_go_together():
    x, weight = activations(5, 576), random_weight(24, LAYOUT)
    operand = quantize_activations(x, LAYOUT, mode="token", layout="sm80")
    y = w4ax_linear_sm80(operand, prepare_weight_sm80(weight, "cpu"))
    quantized = quantize(x, LAYOUT, natural_permutation(LAYOUT), "token")
    exact = quantized.dequantize().double() @ weight.dequantize().double().t()
    assert (y - exact).norm() <= 1e-3 * exact.norm()


def test_fake_and_empty_results():
    prepared = prepare_weight_sm80(random_weight(24, LAYOUT), "cpu")
    operand = operand_of(random_activations(3, LAYOUT), "sm80")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = type(operand)(*map(mode.from_tensor, operand))
        y = w4ax_linear_sm80(fake, prepared, dtype=torch.bfloat16)
    assert y.shape == (3, 24)
    assert y.dtype == torch.bfloat16
    none = quantize_activations(activations(3, 576)[:0], LAYOUT, layout="sm80")
    assert w4ax_linear_sm80(none, prepared).shape == (0, 24)


def test_operator_compiles():
    prepared = prepare_weight_sm80(random_weight(24, LAYOUT), "cpu")
    operand = operand_of(random_activations(3, LAYOUT), "sm80")
    compiled = torch.compile(
        lambda o: w4ax_linear_sm80(o, prepared) * 2, backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(operand), w4ax_linear_sm80(operand, prepared) * 2)


def test_arguments_are_checked():
    prepared = prepare_weight_sm80(random_weight(24, LAYOUT), "cpu")
    operand = operand_of(random_activations(3, LAYOUT), "sm80")
    shifted = torch.empty(operand.operand.numel() + 1, dtype=torch.uint8)[1:].view(3, -1)
    cases = [
        (dict(dtype=torch.float32), {}, {}, "dtype is torch.float32"),
        (dict(bias=torch.zeros(23)), {}, {}, r"bias is torch.float32 \(23,\)"),
        ({}, dict(operand=operand.operand[:, 1:]), {}, r"operand is torch.uint8 \(3, 447\)"),
        ({}, dict(operand=shifted), {}, "operand starts 1 bytes"),
        ({}, dict(scales=operand.scales[0]), {}, r"scales has shape \(3,\)"),
        ({}, dict(multiples=operand.multiples[:, :1]), {}, r"multiples is torch.uint8 \(3, 1\)"),
        ({}, {}, dict(tiles=prepared.tiles[..., :64]), r"tiles has shape \(1, 5, 64\)"),
        ({}, {}, dict(tiles=prepared.tiles[:, :0]), "tiles has 0 blocks of K"),
        ({}, {}, dict(channel_scale=torch.ones(129)), "channel_scale has 129 channels"),
        ({}, {}, dict(channel_scale=torch.ones(12)), "channel_scale has 12 channels"),
    ]
    for arguments, of_operand, of_weight, message in cases:
        with pytest.raises(UserError, match=message):
            w4ax_linear_sm80(
                operand._replace(**of_operand), replace(prepared, **of_weight), **arguments
            )


def test_weights_outside_the_limits_are_refused():
    weight = random_weight(24, LAYOUT)
    floating = pack_weight(
        LAYOUT,
        natural_permutation(LAYOUT),
        torch.zeros(24, LAYOUT.padded),
        torch.ones(24, 5, dtype=torch.float16),
        torch.zeros(24, 5),
        scale_kind="group_fp",
    )
    with pytest.raises(UserError, match="scale_kind is 'group_fp'"):
        prepare_weight_sm80(floating, "cpu")
    odd = replace(weight, codes=weight.codes[:20])
    with pytest.raises(UserError, match="20 output channels"):
        prepare_weight_sm80(odd, "cpu")


def test_zero_points_of_activations_are_refused():
    with pytest.raises(UserError, match="zero_point is true; layout sm80"):
        quantize_activations(activations(3, 576), LAYOUT, zero_point=True, layout="sm80")


def build_sm80(folder, defines=None) -> dict:
    """Build csrc/sm80 alone in ``folder``; content of build.json. A spill fails the build."""
    sources = folder / "csrc"
    shutil.copytree(SOURCES / "include", sources / "include")
    shutil.copytree(SOURCES / "sm80", sources / "sm80")
    shutil.copy(SOURCES / "library.cu", sources)
    return build(folder, 1, defines, archs=("80",), sources=sources)


@pytest.fixture(scope="module")
def sm80_library(toolchain, tmp_path_factory) -> Library:
    """The kernels of csrc/sm80 alone."""
    folder = tmp_path_factory.mktemp("sm80")
    build_sm80(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comet.kernels.library._check_sources", lambda path, info: None)
        return Library(folder / "libcomet_kernels.so")


@pytest.fixture(scope="module")
def cuobjdump():
    tool = find_tool("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is missing; install nvidia-cuda-cuobjdump")
    return tool


def machine_code(cuobjdump, path) -> dict[str, str]:
    """SASS of each kernel of an object by name."""
    run = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=True)
    parts = re.split(r"^\s*Function : (\S+)$", run.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@build_test
def test_instances_and_plans(sm80_library):
    found = instances(sm80_library)
    assert [i.name for i in found] == ["T16", "T32", "T64", "T128"]
    assert all(i.interleaved and i.stages == 4 and i.channels == 128 for i in found)
    names = {m: plan(m, found).name for m in (1, 16, 17, 33, 64, 65, 4096)}
    assert list(names.values()) == ["T16", "T16", "T32", "T64", "T64", "T128", "T128"]
    decode = work_of(found[0], 1, 4096, 27, 5, sms=108)
    assert (decode.tiles, decode.runs) == (32, 108)
    prefill = work_of(found[3], 4096, 4096, 27, 5, sms=108)
    assert (prefill.tiles, prefill.runs) == (1024, 108)


@build_test
def test_launcher_refuses_what_it_cannot_compute(sm80_library):
    launcher = sm80_library.function(
        "comet_w4ax_sm80", ctypes.POINTER(W4axSm80Args), ctypes.c_void_p
    )

    def refusal(**changed) -> str:
        fields = dict(size=ctypes.sizeof(W4axSm80Args), tokens=1, channels=8, int4_blocks=4, grid=1)
        fields |= dict.fromkeys(("activations", "multiples", "scales", "weights"), 4096)
        fields |= dict(channel_scale=4096, out=4096, interleaved=1)
        arguments = W4axSm80Args(**fields | changed)
        return sm80_library.error_string(launcher(ctypes.byref(arguments), None))

    assert "rebuild" in sm80_library.error_string(launcher(None, None))
    assert "rebuild" in refusal(size=8)
    assert "dtype" in refusal(dtype=2)
    for shape in (dict(tokens=0), dict(channels=12), dict(int4_blocks=0), dict(int8_blocks=1024)):
        assert "shape" in refusal(**shape)
    for option in (dict(instance=4), dict(interleaved=0), dict(grid=0), dict(grid=3)):
        assert "option" in refusal(**option)
    for pointer in (dict(out=4098), dict(weights=0), dict(multiples=0), dict(grid=2)):
        assert "pointer" in refusal(**pointer)


@build_test
def test_kernels_use_both_tensor_cores_and_asynchronous_copies(sm80_library, cuobjdump):
    kernels = [k for found in sm80_library.info["kernels"].values() for k in found]
    assert len(kernels) == 4
    assert all(k["spill_stores"] == k["spill_loads"] == 0 for k in kernels)
    code = machine_code(cuobjdump, sm80_library.path)
    assert len(code) == 4
    for text in code.values():
        for instruction in ("IMMA.16864.S4.S4", "IMMA.16832.S8.S8", "LDGSTS", "LDSM.16.M88.4"):
            assert instruction in text
        # No conversion to floating point between the tensor cores' results: integer promotion.
        last = text.rindex("IMMA")
        assert "I2F" not in text[text.index("LDSM") : last]


@build_test
def test_kernel_and_python_share_one_schedule(toolchain, tmp_path):
    source, program = tmp_path / "schedule.cu", tmp_path / "schedule"
    source.write_text(SCHEDULE)
    command = [toolchain.nvcc, "-std=c++17", f"-I{SOURCES / 'include'}", f"-ccbin={toolchain.cxx}"]
    command += [f"-L{folder}" for folder in toolchain.library_dirs]
    subprocess.run([*command, source, "-o", program], check=True, capture_output=True)
    for numbers in ((1, 1, 0, 1), (7, 5, 3, 13), (32, 27, 5, 108), (5, 0, 9, 45), (3, 8, 0, 12)):
        work = StreamK(*numbers)
        expected = [work.begin(run) for run in range(work.runs + 1)]
        expected += [work.owner(t, b) for t in range(work.tiles) for b in range(work.blocks)]
        run = subprocess.run([program, *map(str, numbers)], capture_output=True, check=True)
        assert list(map(int, run.stdout.split())) == expected


def conversion_cost(toolchain, cuobjdump, folder, fast: bool) -> float:
    """SASS operations for each 8 weights, by the difference of a long and a short probe."""
    counts = {}
    for count in (4, 12):
        source = folder / f"probe{count}.cu"
        source.write_text(
            PROBE.replace("COUNT", str(count)).replace("FAST", "true" if fast else "false")
        )
        cubin = source.with_suffix(".cubin")
        command = [toolchain.nvcc, "-std=c++17", "-O3", "-arch=sm_80", "-cubin"]
        command += [f"-I{SOURCES / 'include'}", f"-ccbin={toolchain.cxx}", source, "-o", cubin]
        subprocess.run(command, check=True, capture_output=True)
        (text,) = machine_code(cuobjdump, cubin).values()
        counts[count] = len(CONVERSION.findall(text))
    # A 16-byte load is four words of eight weights.
    return (counts[12] - counts[4]) / ((12 - 4) * 4)


@build_test
def test_fast_conversion_takes_three_operations_for_eight_weights(toolchain, cuobjdump, tmp_path):
    assert 2 <= conversion_cost(toolchain, cuobjdump, tmp_path, fast=True) <= 3
    assert conversion_cost(toolchain, cuobjdump, tmp_path, fast=False) >= 10


@pytest.mark.slow
@build_test
@pytest.mark.parametrize("variant", VARIANTS)
def test_build_variants(toolchain, tmp_path, variant):
    info = build_sm80(tmp_path, VARIANTS[variant])
    assert info["defines"] == {name: str(value) for name, value in VARIANTS[variant].items()}
    assert sum(map(len, info["kernels"].values())) == 4
