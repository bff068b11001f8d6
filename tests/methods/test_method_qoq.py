# SPDX-License-Identifier: Apache-2.0
"""QoQ: progressive weights and the factors of SmoothAttention."""

import pytest
import torch

from comet.methods.qoq import key_factors, progressive, progressive_grid, through_int8


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_progressive_weights_restore_to_int8_within_the_range(rounding):
    weight, moment = random(40, 200), torch.diag(random(200).square() + 0.1)
    restored = progressive(weight, moment, 128, rounding)
    scale = weight.abs().amax(dim=1, keepdim=True) / 119
    integers = restored / scale
    torch.testing.assert_close(integers, integers.round(), rtol=0, atol=1e-3)
    assert integers.abs().max() <= 127.001
    for group in integers.round().int().split(128, dim=1):
        assert all(len(row.unique()) <= 16 for row in group)
    assert (restored - weight).norm() < 0.15 * weight.norm()


def test_both_steps_of_progressive_weights_round_as_torch_rounds():
    weight = random(24, 200)
    scale, step, zero = progressive_grid(weight, 128, 1.0)
    fake = torch.fake_quantize_per_channel_affine
    none = torch.zeros(24, dtype=torch.int32)
    wide = fake(weight, scale[:, 0], none, 0, -119, 119) / scale
    parts = [
        fake(part, step[:, at], zero[:, at].int(), 0, 0, 15)
        for part, at in zip(wide.round().split(128, dim=1), (0, 128), strict=True)
    ]
    expected = torch.cat(parts, dim=1) * scale
    # torch multiplies by the reciprocal of a scale, so a quotient halfway may go the other way.
    close = torch.isclose(through_int8(weight, scale, step, zero), expected, rtol=1e-4, atol=1e-6)
    assert close.float().mean() > 0.995


def test_factors_of_keys_are_equal_in_a_pair_and_grow_with_it():
    keys = random(100, 2, 16)
    keys[:, 1, 3] *= 50
    factors = key_factors(keys, 0.5)
    assert torch.equal(factors[:, :8], factors[:, 8:])
    largest = torch.hypot(keys[:, 1, 3], keys[:, 1, 11]).max()
    assert factors[1, 3] == pytest.approx(float(largest) ** 0.5)
    assert factors[1, 3] == factors.max()
