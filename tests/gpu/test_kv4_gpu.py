# SPDX-License-Identifier: Apache-2.0
"""KV4 attention on a GPU: append bit for bit, decode against the float64 reference."""

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
from comet.kernels import kv4, kv4_call, kv4_paged
from comet.kernels.kv4_cache import PagedKV4Cache
from comet.kernels.plan_kv4 import Plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
FP16, BF16 = torch.float16, torch.bfloat16
# tests/kernels/test_kv4_emulated.py has what is used of this: 1e-3 and 4e-3.
TOLERANCE = {FP16: 4e-3, BF16: 7e-3}
LENGTHS = [1, 63, 0, 64, 65, 127, 128, 1000, 0]
PLANS = [None, (1, 2, 7), (2, 3, 132), (4, 3, 264), (8, 2, 132), (5, 2, 33), (8, 3, 1)]


def poison() -> None:
    """Fill what the next allocations get with 0xff: NaN, so that whatever is not written shows."""
    for size in (1 << 9, 1 << 12, 1 << 16, 1 << 19, 1 << 22, 1 << 24):
        torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")


def decoded(query, state, window=None, plan=None):
    """Decode on the GPU, twice with the same bits."""
    on_gpu = clone(state, "cuda")
    found = []
    for _ in range(2):
        poison()
        arguments = (query.cuda(), *on_gpu, None, window, None if plan is None else Plan(*plan))
        found.append(kv4.kv4_decode(*arguments).cpu())
    assert torch.equal(*found)
    return found[0]


def assert_decode(query, state, window=None, plan=None):
    expected = kv4_paged.decode(query, *state, query.shape[2] ** -0.5, window)
    found = decoded(query, state, window, plan)
    assert relative_error(found, expected) < TOLERANCE[query.dtype]
    empty = state.seq_lens == 0
    assert not found[empty].any()


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("dim", [64, 128])
def test_every_group_size(dim, dtype):
    state, _, _ = filled_state(LENGTHS, dim, 2, dtype)
    for group in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16):
        query = random_tokens(len(LENGTHS), 2 * group, dim, dtype, group, 1.0)
        assert_decode(query, state)


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan(plan):
    state, _, _ = filled_state(LENGTHS, 128, 4, BF16)
    for group in (1, 4, 12):
        query = random_tokens(len(LENGTHS), 4 * group, 128, BF16, group, 1.0)
        assert_decode(query, state, plan=plan)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 63, 64, 65, 128, 129, 4096, 9999])
def test_a_batch_of_one(length):
    state, _, _ = filled_state([length], 128, 2, FP16)
    assert_decode(random_tokens(1, 8, 128, FP16, 3, 1.0), state)


@pytest.mark.parametrize("window", [1, 17, 64, 65, 500, 10000])
def test_sliding_window(window):
    state, _, _ = filled_state(LENGTHS, 64, 2, BF16)
    for plan in (None, (2, 2, 9)):
        assert_decode(random_tokens(len(LENGTHS), 6, 64, BF16, 3, 1.0), state, window, plan)


def test_many_sequences():
    """More sequences than a warp has lanes, most of them empty or short."""
    lengths = [(7 * i * i) % 200 if i % 3 else 0 for i in range(300)]
    state, _, _ = filled_state(lengths, 64, 1, FP16)
    assert_decode(random_tokens(300, 2, 64, FP16, 3, 1.0), state)


def test_outlier_channels_and_strided_queries():
    state, _, _ = filled_state([500, 64], 128, 2, BF16, outliers=300.0)
    rows = random_tokens(2, 24, 128, BF16, 3, 1.0)
    query = rows[:, 8:16]
    expected = kv4_paged.decode(query, *state, 128**-0.5, None)
    found = kv4.kv4_decode(rows.cuda()[:, 8:16], *clone(state, "cuda"))
    # Scores of a hundred: the scaled query must not be rounded to fp16.
    assert relative_error(found, expected) < TOLERANCE[BF16]


@pytest.mark.parametrize("growth", [1.0, 3e4])
def test_attention_sink(growth):
    assert_decode(*attention_sink(growth))


def test_error_against_unquantized_attention(record_property):
    """What 4 bits cost, reported apart from the kernel's own error."""
    state, keys, values = filled_state([1000], 128, 1, BF16, outliers=1.0)
    query = random_tokens(1, 4, 128, BF16, 3, 1.0)
    k, v = (t[:, 0].double() for t in (keys, values))
    exact = torch.softmax(query[0].double() @ k.t() * 128**-0.5, dim=-1) @ v
    error = relative_error(decoded(query, state)[0], exact)
    record_property("error_against_unquantized", error)
    assert error < 0.5


@pytest.mark.parametrize(("dim", "dtype"), [(64, FP16), (128, BF16)])
def test_append_in_chunks_bit_for_bit(dim, dtype):
    counts = [(5, 63, 0, 64, 1), (58, 1, 0, 0, 1), (2, 0, 0, 1, 0), (127, 0, 0, 65, 1)]
    final = [sum(count[i] for count in counts) for i in range(5)]
    expected = empty_state(final, dim, 3, dtype)
    found = clone(expected, "cuda")
    for step, now in enumerate(counts):
        lengths = [sum(count[i] for count in counts[: step + 1]) for i in range(5)]
        new = [random_tokens(sum(now), 3, dim, dtype, 10 * step + i) for i in range(2)]
        for state in (expected, found):
            state.seq_lens.copy_(torch.tensor(lengths))
        kv4_paged.append(*new, *expected, starts_of(now))
        on_gpu = [t.cuda() for t in new]
        kv4.kv4_append(*on_gpu, *found, starts_of(now).cuda(), max(now))
        assert_same_cache(found, expected)


def test_append_token_by_token_bit_for_bit():
    tokens = 3 * PAGE + 1
    expected, keys, values = filled_state([tokens], 128, 4, BF16)
    found = clone(empty_state([tokens], 128, 4, BF16), "cuda")
    for token in range(tokens):
        found.seq_lens.fill_(token + 1)
        new = (t[token : token + 1].cuda() for t in (keys, values))
        kv4.kv4_append(*new, *found)
    assert_same_cache(found, expected)


@pytest.mark.parametrize(("dim", "dtype"), [(64, BF16), (128, FP16)])
def test_unpack_and_prefill(dim, dtype):
    lengths, counts = [70, 5, 0, 129], [3, 5, 0, 66]
    state, _, _ = filled_state(lengths, dim, 2, dtype)
    starts = starts_of([130] * 4)[:-1]
    expected = kv4_paged.unpack(*state, starts, 520)
    on_gpu = clone(state, "cuda")
    found = kv4.kv4_unpack(*on_gpu, starts.cuda(), 520)
    assert torch.equal(found[0].cpu(), expected[0]) and torch.equal(found[1].cpu(), expected[1])
    query = random_tokens(sum(counts), 4, dim, dtype, 8, 1.0)
    first = starts_of(counts)
    whole = kv4.kv4_prefill(query, first, *state, 66, 130)
    on_gpu_whole = kv4.kv4_prefill(query.cuda(), first.cuda(), *on_gpu, 66, 130)
    assert relative_error(on_gpu_whole, whole.double()) < 2 * TOLERANCE[dtype]


def test_shared_pages():
    cache = PagedKV4Cache(6, 2, 128, 2, 256, dtype=BF16, device="cuda")
    keys, values = (random_tokens(132, 2, 128, BF16, s).cuda() for s in (1, 2))
    first = cache.add()
    cache.append([first], keys[:130], values[:130], [130])
    second = cache.add(shared=first, pages=2)
    cache.append([first, second], keys[130:], values[130:])
    query = random_tokens(2, 8, 128, BF16, 3, 1.0)
    state = kv4_call.CacheState(*(t.cpu() for t in cache.batch([first, second])))
    expected = kv4_paged.decode(query, *state, 128**-0.5, None)
    found = cache.decode([first, second], query.cuda())
    assert relative_error(found, expected) < TOLERANCE[BF16]


def test_a_cuda_graph_follows_the_lengths():
    """One captured step of append and decode, replayed while sequences grow over page ends."""
    cache = PagedKV4Cache(12, 2, 64, 3, 256, dtype=FP16, device="cuda")
    sequences, lengths = [cache.add() for _ in range(3)], [60, 1, 126]
    keys, values = (random_tokens(sum(lengths), 2, 64, FP16, s).cuda() for s in (1, 2))
    cache.append(sequences, keys, values, lengths)
    for sequence in sequences:
        cache.reserve(sequence, 8)
    state = kv4_call.CacheState(*cache.batch(sequences))
    new = [torch.empty(3, 2, 64, dtype=FP16, device="cuda") for _ in range(2)]
    query = torch.empty(3, 4, 64, dtype=FP16, device="cuda")

    def step():
        kv4.kv4_append(*new, *state)
        return kv4.kv4_decode(query, *state)

    now = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    reference = clone(state)
    state.seq_lens.zero_()  # the warm-up and the capture write nothing
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for token in range(8):
        now += 1
        state.seq_lens.copy_(now)
        reference.seq_lens.copy_(now)
        for i, tensor in enumerate((*new, query)):
            drawn = random_tokens(3, tensor.shape[1], 64, FP16, 10 * token + i, 1.0)
            tensor.copy_(drawn)
        out.fill_(torch.nan)
        graph.replay()
        kv4_paged.append(*(t.cpu() for t in new), *reference, None)
        assert_same_cache(state, reference)
        expected = kv4_paged.decode(query.cpu(), *reference, 64**-0.5, None)
        assert relative_error(out, expected) < TOLERANCE[FP16]


def test_long_contexts_on_random_pages():
    """16k tokens of 8 KV heads, compared on the GPU with attention over the restored cache."""
    for batch, heads, kv_heads, context in ((1, 32, 8, 16384), (4, 8, 8, 5000), (2, 64, 8, 8191)):
        pages = batch * -(-context // PAGE)
        cache = PagedKV4Cache(pages, kv_heads, 128, batch, context, BF16, "cuda")
        sequences = cache.fill_random([context] * batch)
        query = torch.randn(batch, heads, 128, device="cuda").bfloat16()
        state = cache.batch(sequences)
        starts = torch.arange(batch, device="cuda", dtype=torch.int32) * context
        k, v = (
            t.view(batch, context, kv_heads, 128).transpose(1, 2).float()
            for t in kv4.kv4_unpack(*state, starts, batch * context)
        )
        grouped = query.float().unflatten(1, (kv_heads, -1))
        scores = torch.softmax(grouped @ k.mT * 128**-0.5, dim=-1)
        found = kv4.kv4_decode(query, *state)
        expected = (scores @ v).flatten(1, 2).double().cpu()
        # K and V of the expected values are rounded to bf16.
        assert relative_error(found, expected) < 3e-2


def test_overlapping_launches():
    """Append and decode launched before their predecessors end, many steps without a pause."""
    steps, lengths = 70, [60, 1, 126, 0]
    cache = PagedKV4Cache(16, 2, 128, 4, 256, dtype=BF16, device="cuda")
    sequences = [cache.add() for _ in lengths]
    keys, values = (random_tokens(sum(lengths), 2, 128, BF16, s).cuda() for s in (1, 2))
    cache.append(sequences, keys, values, lengths)
    new = [random_tokens(4 * steps, 2, 128, BF16, s, 1.0).cuda().split(4) for s in (3, 4)]
    query = random_tokens(4, 8, 128, BF16, 5, 1.0).cuda()
    batches = []
    for _ in range(steps):
        for sequence in sequences:
            cache.reserve(sequence, 1)
        batches.append(cache.batch(sequences))
    before = [t.clone() for t in (cache.cache, cache.tail)]
    results = []
    for dependent in (False, True):
        cache.cache.copy_(before[0])
        cache.tail.copy_(before[1])
        torch.cuda.synchronize()
        outputs = []
        for key, value, batch in zip(*new, batches, strict=True):
            kv4.kv4_append(key, value, *batch, dependent_launch=dependent)
            outputs.append(kv4.kv4_decode(query, *batch, dependent_launch=dependent))
        results.append(torch.stack(outputs).cpu())
    assert results[0].isfinite().all()
    assert torch.equal(*results)
