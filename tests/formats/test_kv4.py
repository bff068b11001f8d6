# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from comet.formats.kv4 import (
    PAGE,
    KV4Codes,
    pack_page,
    page_bytes,
    quantize_k_page,
    quantize_v,
    restore_keys,
    unpack_page,
)
from comet.formats.packing import pack_int4
from comet.kernels import kv4_reference
from comet.kernels.kv4_reference import KV4Cache, kv4_attention


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_values_are_restored_within_half_a_step():
    v = random(2, 10, 64)
    q = quantize_v(v)
    error = (q.dequantize() - v).abs()
    # Scale and zero are rounded to fp16: a little more than half a step.
    assert torch.all(error <= 0.52 * q.scale.float() + 2e-3)


def test_an_outlier_channel_of_k_costs_only_itself():
    k = random(PAGE, 32)
    quiet = quantize_k_page(k)
    k[:, 5] *= 500
    loud = quantize_k_page(k)
    other = torch.arange(32) != 5
    assert torch.equal(quiet.dequantize()[:, other], loud.dequantize()[:, other])


def test_a_constant_channel_is_restored_to_fp16_precision():
    k = torch.full((PAGE, 4), 3.14159)
    assert torch.allclose(quantize_k_page(k).dequantize(), k, rtol=1e-3)


def test_the_unfinished_page_is_untouched():
    k = random(1, 100, 16)
    restored = restore_keys(k)
    assert torch.equal(restored[:, PAGE:], k[:, PAGE:])
    assert not torch.equal(restored[:, :PAGE], k[:, :PAGE])


def test_bytes_of_a_page():
    assert page_bytes(128) == 8960 and page_bytes(64) == 4608


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_whole_sequence_equals_token_by_token(tokens, heads):
    q, (query_heads, kv_heads), d = None, heads, 32
    q = random(1, query_heads, tokens, d, seed=1)
    k = random(1, kv_heads, tokens, d, seed=2) * torch.linspace(0.1, 20, d)
    v = random(1, kv_heads, tokens, d, seed=3)
    whole = kv4_attention(q, k, v, d**-0.5)
    cache = KV4Cache(kv_heads, d)
    for t in range(tokens):
        cache.append(k[0, :, t], v[0, :, t])
        step = cache.attend(q[0, :, t], d**-0.5)
        assert torch.allclose(step.float(), whole[0, :, t], atol=2e-5), t


def test_a_sliding_window_hides_older_tokens():
    q, k, v = random(1, 2, 80, 16, seed=1), random(1, 2, 80, 16, seed=2), random(1, 2, 80, 16)
    changed = v.clone()
    changed[:, :, :40] += 100
    a = kv4_attention(q, k, v, 0.25, window=16)
    b = kv4_attention(q, k, changed, 0.25, window=16)
    assert torch.equal(a[:, :, 56:], b[:, :, 56:])
    assert not torch.equal(a[:, :, 45:50], b[:, :, 45:50])


@pytest.mark.parametrize("dim", [64, 128])
def test_a_page_holds_what_was_packed(dim):
    keys, values = quantize_k_page(random(3, 2, PAGE, dim)), quantize_v(random(3, 2, PAGE, dim))
    page = pack_page(keys, values)
    assert page.shape == (3, 2, page_bytes(dim))
    for expected, found in zip((keys, values), unpack_page(page, dim), strict=True):
        assert torch.equal(expected.packed, found.packed)
        assert torch.equal(expected.scale, found.scale) and torch.equal(expected.zero, found.zero)


@pytest.mark.parametrize("dim", [64, 128])
def test_any_bytes_survive_unpacking(dim):
    generator = torch.Generator().manual_seed(0)
    page = torch.randint(0, 256, (5, page_bytes(dim)), generator=generator, dtype=torch.uint8)
    assert torch.equal(pack_page(*unpack_page(page, dim)), page)


@pytest.mark.parametrize("dim", [64, 128])
def test_codes_lie_where_the_contract_says(dim):
    """docs/contracts.md, bytes of a page: a few codes of K and V at once."""
    for token, channel in ((0, 0), (1, 1), (2, 2), (4, 4), (16, 8), (63, dim - 1), (37, dim - 14)):
        codes = torch.zeros(PAGE, dim, dtype=torch.uint8)
        codes[token, channel] = 15
        of_keys = KV4Codes(pack_int4(codes), *(torch.zeros(1, dim).half() for _ in range(2)))
        of_values = KV4Codes(pack_int4(codes), *(torch.zeros(PAGE, 1).half() for _ in range(2)))
        a, s, h, b = token // 16, token // 4 % 4, token // 2 % 2, token % 2
        j, t, u, k, i = (
            channel // 32,
            channel // 8 % 4,
            channel // 4 % 2,
            channel // 2 % 2,
            channel % 2,
        )
        key = 512 * (2 * j + u) + 16 * (4 * (2 * a + b) + t) + 4 * s + 2 * i + k
        g, inner = divmod(channel, dim // 8)
        q, w, r = inner // 8, inner // 2 % 4, inner % 2
        value = 36 * dim + 512 * (dim // 64 * s + q) + 16 * (4 * g + a) + 4 * w + 2 * b + h
        page = pack_page(of_keys, of_values)
        assert page.nonzero().flatten().tolist() == [key, value]
        assert (page[key], page[value]) == (15 << 4 * h, 15 << 4 * r)


@pytest.mark.parametrize("page", [1, 32, 64])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
def test_both_ways_to_the_attention_of_a_sequence_agree(page, window, tokens, monkeypatch):
    monkeypatch.setattr(kv4_reference, "ROWS_AT_ONCE", 70)
    grouped = torch.randn(2, 2, 3, tokens, 16)
    exact, stored, values = torch.randn(3, 2, 2, tokens, 16)
    seen = kv4_reference._seen(tokens, window, grouped.device)
    arguments = grouped, kv4_reference._Keys(exact, stored, page), values, seen, 0.25
    expected = kv4_reference._page_by_page(*arguments)
    torch.testing.assert_close(kv4_reference._all_scores(*arguments), expected)
