# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from comet.formats.kv4 import PAGE, page_bytes, quantize_k_page, quantize_v, restore_keys
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
