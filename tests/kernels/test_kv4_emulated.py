# SPDX-License-Identifier: Apache-2.0
"""The KV4 kernels' own source, run lane by lane on the host; needs nvcc for its headers, no GPU.

Index maps, operand fragments, the shares of thread blocks and the merging are those of the kernels.
What only a GPU shows (asynchronous copies, races, speed) is in ``tests/gpu/test_kv4_gpu.py``.
"""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from kv4_inputs import (
    assert_same_cache,
    attention_sink,
    clone,
    empty_state,
    filled_state,
    random_tokens,
    relative_error,
    starts_of,
)

from comet.formats.kv4 import PAGE
from comet.kernels import kv4_call, kv4_paged
from comet.kernels.build import SOURCES
from comet.kernels.plan_kv4 import Plan, shared_bytes

pytestmark = pytest.mark.build
EMULATION = Path(__file__).parent / "emulation"
FP16, BF16 = torch.float16, torch.bfloat16
# Probabilities, plain and scaled, are rounded to fp16, then the result is rounded: 1e-3 and 4e-3 at
# most, measured with scores of up to 20, as here. Rounding the scaled query too would add 6e-3.
TOLERANCE = {FP16: 2e-3, BF16: 5e-3}


@pytest.fixture(scope="module")
def emulator(toolchain, tmp_path_factory) -> ctypes.CDLL:
    """The kernels compiled for the emulated machine."""
    path = tmp_path_factory.mktemp("emulation") / "libkv4.so"
    flags = "-fPIC,-Wall,-Wextra,-Werror,-Wno-unknown-pragmas,-fvisibility=hidden"
    # A GPU refuses 16-byte accesses that are not aligned; so does this.
    flags += ",-fsanitize=undefined,-fno-sanitize-recover=all"
    command = [toolchain.nvcc, "-std=c++17", "-O1", "-shared", f"-Xcompiler={flags}"]
    command += [f"-ccbin={toolchain.cxx}", "-cudart=none", f"-I{EMULATION}"]
    command += [f"-I{SOURCES / 'include'}", EMULATION / "kv4.cpp", "-o", path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return ctypes.CDLL(str(path))


@pytest.fixture(scope="module")
def emulated(emulator):
    """The C interface of the kernels, emulated: ``emulated(name, arguments)``."""

    def call(name: str, arguments: ctypes.Structure, backwards: bool = False) -> None:
        arguments.size = ctypes.sizeof(arguments)
        emulator.emulate_backwards(int(backwards))
        assert getattr(emulator, name)(ctypes.byref(arguments), None) == 0

    return call


def test_plans_count_the_shared_memory_of_the_kernel(emulator):
    for dim, warps, stages in ((64, 4, 6), (128, 8, 3), (128, 12, 2)):
        found = emulator.decode_shared_bytes(dim, warps, stages)
        assert found == shared_bytes(dim, warps, stages)


def decode(emulated, query, state, plan, window=None, backwards=False):
    """Decode attention on the emulated machine; counters must come back as zero."""
    group = query.shape[1] // state.cache.shape[1]
    size = kv4_call.partial_bytes(plan, group, query.shape[2])
    partials = torch.full((size // 4,), torch.nan)
    counters = torch.zeros(query.shape[0] * state.cache.shape[1], dtype=torch.int32)
    out = torch.full_like(query, torch.nan)
    addresses = (partials.data_ptr(), counters.data_ptr())
    scale = query.shape[2] ** -0.5
    arguments = kv4_call.decode_arguments(query, state, scale, window, out, plan, *addresses)
    emulated("comet_kv4_decode", arguments, backwards)
    assert not counters.any()
    return out


CASES = [
    # lengths, D, KV heads, group, type, (warps, stages, blocks), window
    ([1], 128, 1, 1, FP16, (1, 2, 1), None),
    ([63, 64, 65], 128, 2, 4, BF16, (2, 2, 2), None),
    ([127, 0, 128, 1, 0], 64, 2, 8, FP16, (4, 3, 3), None),
    ([1000], 128, 1, 16, FP16, (2, 3, 5), None),
    ([700], 64, 1, 9, BF16, (8, 3, 2), None),
    ([40, 300, 5, 260], 128, 1, 7, BF16, (12, 2, 4), None),
    ([300, 700, 130], 64, 2, 5, FP16, (3, 4, 7), 100),
    ([300, 40], 128, 1, 1, BF16, (1, 2, 9), 17),
    ([200] + [0] * 40 + [65] * 3, 64, 1, 2, FP16, (2, 2, 5), None),
    ([0, 0, 0], 128, 1, 3, BF16, (2, 2, 4), 70),
]


@pytest.mark.parametrize(("lengths", "dim", "heads", "group", "dtype", "plan", "window"), CASES)
def test_decode_equals_the_reference(emulated, lengths, dim, heads, group, dtype, plan, window):
    state, _, _ = filled_state(lengths, dim, heads, dtype)
    query = random_tokens(len(lengths), heads * group, dim, dtype, 7, 1.0)
    expected = kv4_paged.decode(query, *state, dim**-0.5, window)
    found = decode(emulated, query, state, Plan(*plan), window)
    assert relative_error(found, expected) < TOLERANCE[dtype]
    again = decode(emulated, query, state, Plan(*plan), window, backwards=True)
    assert torch.equal(found, again)


@pytest.mark.parametrize(("dim", "group"), [(64, 4), (128, 12)])
def test_pages_of_every_kind_weigh_alike(emulated, dim, group):
    """What shifts all scores of a page shows beside other pages and unfinished ones."""
    lengths = [1, 63, 0, 64, 65, 127, 128, 1000, 0]
    state, _, _ = filled_state(lengths, dim, 2, FP16)
    query = random_tokens(len(lengths), 2 * group, dim, FP16, group, 1.0)
    expected = kv4_paged.decode(query, *state, dim**-0.5, None)
    found = decode(emulated, query, state, Plan(4, 2, 3))
    assert relative_error(found, expected) < TOLERANCE[FP16]


@pytest.mark.parametrize("growth", [1.0, 3e4])
def test_attention_sink(emulated, growth):
    """Later values may have large scales, which leave less room for small probabilities."""
    query, state = attention_sink(growth)
    expected = kv4_paged.decode(query, *state, 0.125, None)
    for plan in (Plan(2, 2, 1), Plan(1, 2, 2)):
        assert relative_error(decode(emulated, query, state, plan), expected) < TOLERANCE[BF16]


def test_sequences_grow_over_page_ends(emulated):
    lengths = torch.tensor([60, 1, 126], dtype=torch.int32)
    state = empty_state((lengths + 8).tolist(), 64, 2, FP16)
    state.seq_lens.copy_(lengths)
    keys, values = (random_tokens(int(lengths.sum()), 2, 64, FP16, seed) for seed in (1, 2))
    kv4_paged.append(keys, values, *state, starts_of(lengths.tolist()))
    for token in range(8):
        state.seq_lens.add_(1)
        key, value, query = (
            random_tokens(3, heads, 64, FP16, 10 * token + i, 1.0)
            for i, heads in enumerate((2, 2, 4))
        )
        emulated("comet_kv4_append", kv4_call.append_arguments(key, value, state, None, 1))
        expected = kv4_paged.decode(query, *state, 0.125, None)
        found = decode(emulated, query, state, Plan(2, 2, 5))
        assert relative_error(found, expected) < TOLERANCE[FP16]


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 13, 40])
def test_any_number_of_thread_blocks(emulated, blocks):
    lengths = [130, 64, 300, 1, 0, 65]
    state, _, _ = filled_state(lengths, 64, 2, FP16)
    query = random_tokens(len(lengths), 6, 64, FP16, 7, 1.0)
    expected = kv4_paged.decode(query, *state, 0.125, None)
    for warps in (1, 3):
        found = decode(emulated, query, state, Plan(warps, 2, blocks))
        assert relative_error(found, expected) < TOLERANCE[FP16]


def test_extreme_scales_stay_finite(emulated):
    """The largest fp16 scales in K and V, and queries of any size."""
    state, _, _ = filled_state([64], 64, 1, BF16)
    for size in (1e-6, 1.0, 1e6):
        keys = random_tokens(64, 1, 64, BF16, 1) * 60000 / 200
        values = random_tokens(64, 1, 64, BF16, 2) * 60000 / 400
        kv4_paged.append(keys, values, *state, starts_of([64]))
        query = random_tokens(1, 4, 64, BF16, 3) * size
        expected = kv4_paged.decode(query, *state, 1e-6, None)
        found = torch.full_like(query, torch.nan)
        partials, counters = torch.zeros(1024), torch.zeros(1, dtype=torch.int32)
        arguments = kv4_call.decode_arguments(
            query, state, 1e-6, None, found, Plan(1, 2, 1), partials.data_ptr(),
            counters.data_ptr(),
        )  # fmt: skip
        emulated("comet_kv4_decode", arguments)
        assert relative_error(found, expected) < 2e-2


@pytest.mark.parametrize(("dim", "dtype"), [(64, BF16), (128, FP16), (128, BF16)])
def test_append_equals_the_reference_bit_for_bit(emulated, dim, dtype):
    """Chunks of every kind, one after another: within a page, over its end, whole pages."""
    final = [200, 64, 0, 131, 3]
    expected = empty_state(final, dim, 2, dtype)
    found, lengths = clone(expected), [0] * len(final)
    for step, counts in enumerate(
        [(5, 63, 0, 64, 1), (58, 1, 0, 0, 1), (2, 0, 0, 1, 0), (127, 0, 0, 65, 1), (8, 0, 0, 1, 0)]
    ):
        lengths = [a + b for a, b in zip(lengths, counts, strict=True)]
        keys = random_tokens(sum(counts), 2, dim, dtype, 10 + step)
        values = random_tokens(sum(counts), 2, dim, dtype, 20 + step, 1.0)
        for state in (expected, found):
            state.seq_lens.copy_(torch.tensor(lengths))
        starts = starts_of(counts)
        kv4_paged.append(keys, values, *expected, starts)
        arguments = kv4_call.append_arguments(keys, values, found, starts, max(counts))
        emulated("comet_kv4_append", arguments, backwards=step % 2 == 1)
        assert_same_cache(found, expected)
    assert lengths == final


@pytest.mark.parametrize(("dim", "heads"), [(64, 1), (64, 3), (128, 2), (128, 5)])
@pytest.mark.parametrize("backwards", [False, True])
def test_append_of_one_token_a_sequence_with_strided_rows(emulated, dim, heads, backwards):
    """A warp a KV head, whose number need not fill thread blocks; full pages and others."""
    lengths = [64, 0, 17, 128]
    expected, _, _ = filled_state([63, 0, 16, 127], dim, heads, BF16)
    expected.seq_lens.copy_(torch.tensor(lengths))
    found = clone(expected)
    both = random_tokens(len(lengths), 2 * heads, dim, BF16, 5)
    keys, values = both[:, :heads], both[:, heads:]
    kv4_paged.append(keys, values, *expected, None)
    arguments = kv4_call.append_arguments(keys, values, found, None, 1)
    emulated("comet_kv4_append", arguments, backwards)
    assert_same_cache(found, expected)


def test_append_of_at_most_one_token(emulated):
    counts = [1, 0, 1, 0]
    expected, _, _ = filled_state([62, 64, 127, 5], 128, 3, FP16)
    expected.seq_lens.add_(torch.tensor(counts))
    found = clone(expected)
    keys, values = (random_tokens(2, 3, 128, FP16, seed) for seed in (5, 6))
    starts = starts_of(counts)
    kv4_paged.append(keys, values, *expected, starts)
    emulated("comet_kv4_append", kv4_call.append_arguments(keys, values, found, starts, 1))
    assert_same_cache(found, expected)


@pytest.mark.parametrize("special", ["constant", "tiny", "ties", "huge"])
def test_append_of_special_values(emulated, special):
    x = random_tokens(PAGE, 1, 64, FP16, 4)
    if special == "constant":
        x = torch.full_like(x, 0.3)
    elif special == "tiny":
        x = (x.float() * 1e-7).half()
    elif special == "ties":
        x = (torch.arange(PAGE * 64).view(PAGE, 1, 64) % 31 / 2).half()
    else:
        x = (x.float().clamp(-3, 3) * 20000).half()
    expected = empty_state([PAGE], 64, 1, FP16)
    found = clone(expected)
    starts = starts_of([PAGE])
    kv4_paged.append(x, x, *expected, starts)
    emulated("comet_kv4_append", kv4_call.append_arguments(x, x, found, starts, PAGE))
    assert_same_cache(found, expected)


@pytest.mark.parametrize(("dim", "dtype"), [(64, FP16), (128, BF16)])
def test_unpack_equals_the_reference(emulated, dim, dtype):
    lengths = [65, 0, 130, 64]
    state, _, _ = filled_state(lengths, dim, 2, dtype)
    starts = torch.tensor([200, 0, 3, 136], dtype=torch.int32)
    expected = kv4_paged.unpack(*state, starts, 265)
    found = [torch.zeros_like(t) for t in expected]
    emulated("comet_kv4_unpack", kv4_call.unpack_arguments(state, starts, *found))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
