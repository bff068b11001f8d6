# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comet.formats.packing import pack_int4, unpack_int4


@given(st.lists(st.integers(0, 15), min_size=2, max_size=64).filter(lambda c: len(c) % 2 == 0))
def test_unpack_inverts_pack(codes):
    codes = torch.tensor(codes, dtype=torch.uint8)
    packed = pack_int4(codes)
    assert packed.shape[0] == len(codes) // 2
    assert torch.equal(unpack_int4(packed), codes)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=32))
def test_pack_inverts_unpack(packed):
    packed = torch.tensor(packed, dtype=torch.uint8)
    assert torch.equal(pack_int4(unpack_int4(packed)), packed)


def test_even_element_is_the_low_nibble():
    assert pack_int4(torch.tensor([3, 10])).tolist() == [3 + 16 * 10]


@pytest.mark.parametrize("codes", [[0, 16], [-1, 0], [1, 2, 3]])
def test_refuses_what_does_not_fit(codes):
    with pytest.raises(ValueError, match="odd|within"):
        pack_int4(torch.tensor(codes))
