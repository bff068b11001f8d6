# SPDX-License-Identifier: Apache-2.0
"""The KV4 operators on a CPU: against the unpaged reference, their checks, and torch.compile."""

import pytest
import torch
from kv4_inputs import clone, empty_state, filled_state, random_tokens, relative_error, starts_of

from comet.errors import UserError
from comet.kernels import kv4, plan_kv4
from comet.kernels.kv4_cache import PagedKV4Cache
from comet.kernels.kv4_reference import KV4Cache, kv4_attention
from comet.kernels.plan_kv4 import Gpu, choose, thread_blocks
from comet.speed.tune_kv4 import candidates

BF16, FP16 = torch.bfloat16, torch.float16
LENGTHS = (1, 63, 64, 65, 127, 128, 1000)


def unpaged(keys, values, query, scale=None):
    """``KV4Cache``, token by token, in float64: [heads, D]."""
    cache = KV4Cache(keys.shape[1], keys.shape[2])
    for key, value in zip(keys, values, strict=True):
        cache.append(key, value)
    return cache.attend(query, scale or query.shape[1] ** -0.5)


@pytest.mark.parametrize(("dim", "dtype"), [(64, FP16), (128, BF16)])
def test_mixed_lengths_equal_the_unpaged_cache(dim, dtype):
    lengths = list(LENGTHS) + [0]
    state, keys, values = filled_state(lengths, dim, 2, dtype)
    query = random_tokens(len(lengths), 6, dim, dtype, 7, 1.0)
    found = kv4.kv4_decode(query, *state)
    first = starts_of(lengths).tolist()
    for row, length in enumerate(LENGTHS):
        part = slice(first[row], first[row] + length)
        expected = unpaged(keys[part], values[part], query[row])
        assert torch.equal(found[row], expected.to(dtype)), length
    assert not found[-1].any()


def test_one_token_at_a_time_equals_a_chunk():
    whole, keys, values = filled_state([130], 64, 2, FP16)
    state = empty_state([130], 64, 2, FP16)
    for token in range(130):
        state.seq_lens.fill_(token + 1)
        kv4.kv4_append(keys[token : token + 1], values[token : token + 1], *state)
    assert torch.equal(state.cache, whole.cache)
    assert torch.equal(state.tail[:, :, :2].nan_to_num(), whole.tail[:, :, :2].nan_to_num())


@pytest.mark.parametrize("window", [1, 17, 64, 100, 5000])
def test_sliding_window_hides_older_tokens(window):
    length = 200
    keys, values = (random_tokens(length, 1, 64, BF16, seed, 1.0) for seed in (1, 2))
    query = random_tokens(1, 2, 64, BF16, 3, 1.0)
    whole = torch.zeros(1, 2, length, 64)
    whole[:, :, -1] = query
    heads_first = (t.float().transpose(0, 1)[None] for t in (keys, values))
    expected = kv4_attention(whole, *heads_first, 0.125, window)[0, :, -1]
    cache = PagedKV4Cache(8, 1, 64, 1, 256, dtype=BF16)
    sequence = cache.add()
    cache.append([sequence], keys, values, [length])
    found = cache.decode([sequence], query, window=window)
    assert relative_error(found, expected[None].double()) < 8e-3


def test_two_sequences_share_pages():
    cache = PagedKV4Cache(5, 2, 64, 2, 256, dtype=FP16)
    keys, values = (random_tokens(132, 2, 64, FP16, s) for s in (1, 2))
    first = cache.add()
    cache.append([first], keys[:130], values[:130], [130])
    second = cache.add(shared=first, pages=2)
    cache.append([first, second], keys[130:], values[130:])
    query = random_tokens(2, 4, 64, FP16, 3, 1.0)
    found = cache.decode([first, second], query)
    rows = list(range(131)), [*range(128), 131]
    for row, tokens in enumerate(rows):
        expected = unpaged(keys[tokens], values[tokens], query[row])
        assert torch.equal(found[row], expected.half())
    cache.remove(first)
    assert torch.equal(cache.decode([second], query[1:]), found[1:])
    with pytest.raises(UserError, match="has no 3 full pages"):
        cache.add(shared=second, pages=3)


def test_pages_of_ended_sequences_are_used_again():
    cache = PagedKV4Cache(3, 1, 64, 2, 192, dtype=FP16)
    x = random_tokens(130, 1, 64, FP16, 1)
    for _ in range(3):
        sequence = cache.add()
        cache.append([sequence], x, x, [130])
        with pytest.raises(UserError, match="no free page left of 3"):
            cache.reserve(cache.add(), 1)
        with pytest.raises(UserError, match="room for 192"):
            cache.reserve(sequence, 63)
        for number in list(cache.lengths):
            cache.remove(number)


@pytest.mark.parametrize("window", [None, 40])
def test_prefill_of_chunks(window):
    """Every token of a chunk sees what decoding would have seen, had it come last."""
    lengths, counts = [70, 5, 0, 129], [3, 5, 0, 66]
    state, _, _ = filled_state(lengths, 64, 2, BF16)
    query = random_tokens(sum(counts), 4, 64, BF16, 8, 1.0)
    starts = starts_of(counts)
    found = kv4.kv4_prefill(query, starts, *state, 66, 130, window=window)
    keys, values = kv4.kv4_unpack(*state, starts_of([130] * 4)[:-1], 520)
    for row in range(4):
        for i in range(counts[row]):
            seen = lengths[row] - counts[row] + i + 1
            tokens = slice(row * 130 + max(0, seen - (window or seen)), row * 130 + seen)
            k, v = (t[tokens].repeat_interleave(2, dim=1).double() for t in (keys, values))
            q = query[starts[row] + i].double()
            weights = torch.einsum("hd,thd->ht", q / 8, k).softmax(-1)
            expected = torch.einsum("ht,thd->hd", weights, v)
            assert relative_error(found[starts[row] + i], expected) < 2e-2


def test_prefill_and_decode_agree_on_the_last_token():
    lengths = [64, 100]
    state, _, _ = filled_state(lengths, 128, 1, FP16)
    query = random_tokens(2, 3, 128, FP16, 8, 1.0)
    found = kv4.kv4_prefill(query, starts_of([1, 1]), *state, 1, 128)
    assert relative_error(found, kv4.kv4_decode(query, *state).double()) < 5e-3


def test_fakes_and_compilation():
    state, _, _ = filled_state([70, 3], 64, 2, BF16)
    query = random_tokens(2, 4, 64, BF16, 8, 1.0)
    new = random_tokens(2, 2, 64, BF16, 9)
    tests = ("test_schema", "test_faketensor")
    ops = torch.ops.comet
    torch.library.opcheck(
        ops.kv4_append.default, (new, new, *clone(state), None, 1, False), test_utils=tests
    )
    torch.library.opcheck(
        ops.kv4_decode.default, (query, *state, 0.125, None, [], False), test_utils=tests
    )
    out = torch.empty_like(query)
    torch.library.opcheck(
        ops.kv4_decode_into.default, (out, query, *state, 0.125, None, [], False), test_utils=tests
    )
    assert kv4.kv4_decode(query, *state, out=out) is out
    assert torch.equal(out, kv4.kv4_decode(query, *state))
    starts = starts_of([1, 1])
    torch.library.opcheck(
        ops.kv4_prefill.default, (query, starts, *state, 1, 128, 0.125, None), test_utils=tests
    )
    torch.library.opcheck(ops.kv4_unpack.default, (*state, starts[:2] * 70, 140), test_utils=tests)

    def step(query, key, value, cache, tail, tables, lengths, slots):
        kv4.kv4_append(key, value, cache, tail, tables, lengths, slots)
        return kv4.kv4_decode(query, cache, tail, tables, lengths, slots)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    both = [clone(state), clone(state)]
    for one in both:
        one.seq_lens.add_(1)
    one_more = compiled(query, new, new, *both[0])
    assert torch.equal(one_more, step(query, new, new, *both[1]))
    assert torch.equal(both[0].cache, both[1].cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, q: {"query": q[:, :3]}, "query has 3 heads; they must be 1 to 16 times the 2"),
        (lambda s, q: {"query": q.half()}, r"query is torch.float16 .*; it must be torch.bfloat16"),
        (lambda s, q: {"query": q.mT.contiguous().mT}, "query has strides"),
        (lambda s, q: {"out": q[:1]}, r"out is torch.bfloat16 \(1, 4, 64\)"),
        (lambda s, q: {"window": 0}, "window is 0; it must be at least 1"),
        (lambda s, q: {"scale": -1.0}, "scale is -1.0; it must be positive"),
        (
            lambda s, q: {"cache": s.cache[..., 1:]},
            r"cache has shape .* it must be \(pages, 2, 4608",
        ),
        (lambda s, q: {"tail": s.tail[..., :32]}, "tail has shape .* with D 64 or 128"),
        (lambda s, q: {"tail": s.tail.float()}, "tail is torch.float32; it must be"),
        (lambda s, q: {"seq_lens": s.seq_lens.long()}, "seq_lens is torch.int64"),
        (lambda s, q: {"slots": s.slots[:1]}, r"slots is torch.int32 \(1,\)"),
        (lambda s, q: {"block_tables": s.block_tables[0]}, "block_tables has shape"),
        (
            lambda s, q: {"block_tables": s.block_tables.t().contiguous().t()},
            "block_tables has str",
        ),
    ],
)
def test_refusals_of_decode(change, message):
    state, _, _ = filled_state([70, 130], 64, 2, BF16)
    query = random_tokens(2, 4, 64, BF16, 8)
    with pytest.raises(UserError, match=message):
        kv4.kv4_decode(**({"query": query, **state._asdict()} | change(state, query)))


def test_refusals_of_append_and_prefill():
    state, keys, values = filled_state([70], 64, 2, BF16)
    with pytest.raises(UserError, match=r"key is torch.bfloat16 \(70, 2, 64\)"):
        kv4.kv4_append(keys, values, *state)
    with pytest.raises(UserError, match="max_new_tokens is 0"):
        kv4.kv4_append(keys, values, *state, starts_of([70]), 0)
    with pytest.raises(UserError, match="rows a multiple of 16 bytes apart"):
        odd = torch.zeros(70, 132, dtype=BF16)[:, :128].view(70, 2, 64)
        kv4.kv4_append(odd, values, *state, starts_of([70]), 70)
    with pytest.raises(UserError, match=r"starts is torch.int64 \(1,\)"):
        kv4.kv4_unpack(*state, starts_of([1])[:1].long(), 70)
    with pytest.raises(UserError, match="max_new_tokens is 1 and max_seq_len 129; .* the 128 tok"):
        kv4.kv4_prefill(keys[:1], starts_of([1]), *state, 1, 129)


def test_a_plan_fits_the_gpu():
    """Every thread block of a plan is resident at once, on GPUs of any size."""
    for gpu in (Gpu(132, 228 * 1024, 227 * 1024), Gpu(108, 164 * 1024, 163 * 1024)):
        for batch, context in ((1, 1024), (1, 16384), (256, 1024), (64, 4096)):
            for dim, kv_heads, group in ((128, 8, 4), (64, 32, 1), (128, 1, 16)):
                plan = choose(batch, kv_heads, group, dim, context // 64, gpu)
                per_sm = -(-plan.blocks // gpu.sms)
                assert plan.stages >= 2 and plan.blocks >= 0.8 * per_sm * gpu.sms
                assert gpu.fits(plan.warps, plan.stages, per_sm, dim, group)
                assert plan.warps * per_sm * plan.stages >= 8
    assert choose(1, 8, 4, 128, 16, Gpu(80, 100 * 1024, 99 * 1024)).blocks == 80


def test_shapes_between_those_of_the_table_take_the_nearest_plan(monkeypatch):
    table = {(128, 1, 15, 4): (3, 2, 4), (128, 1, 17, 6): (4, 3, 2), (64, 1, 16, 5): (2, 6, 2)}
    monkeypatch.setattr(plan_kv4, "TABLE", table)
    found = plan_kv4._measured
    assert found((128, 1, 15, 4)) == found((128, 1, 16, 5)) == found((128, 1, 13, 4)) == (3, 2, 4)
    assert found((128, 1, 17, 5)) == (4, 3, 2)
    assert found((128, 1, 12, 4)) is found((128, 2, 15, 4)) is None


@pytest.mark.parametrize(
    ("slots", "items", "blocks"),
    [(132, 8, 128), (132, 128, 128), (264, 512, 256), (264, 8192, 256), (264, 300, 264)],
)
def test_thread_blocks_share_sequences_evenly(slots, items, blocks):
    assert thread_blocks(slots, items) == blocks


def test_every_candidate_of_the_tuner_fits():
    gpu = Gpu(132, 228 * 1024, 227 * 1024)
    for dim, group in ((64, 1), (128, 8), (128, 16)):
        found = list(candidates(dim, group, gpu))
        assert len(found) >= 5
        for warps, stages, per_sm in found:
            assert gpu.fits(warps, stages, per_sm, dim, group)
