# SPDX-License-Identifier: Apache-2.0
"""Weighted stream-K: every block once, loads within one block, and who shares a tile."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import UserError
from comet.schedule.stream_k import INT8_WEIGHT, Part, StreamK, run_count, schedule


@st.composite
def work(draw) -> StreamK:
    """Any GEMM that can be cut."""
    tiles, int4 = draw(st.integers(1, 60)), draw(st.integers(0, 40))
    int8 = draw(st.integers(int(int4 == 0), 20))
    weight = tiles * (int4 + INT8_WEIGHT * int8)
    return StreamK(tiles, int4, int8, draw(st.integers(1, max(1, min(weight // 2, 300)))))


@settings(deadline=None, max_examples=200)
@given(work())
def test_every_block_once_and_in_order(gemm):
    computed = [
        (part.tile, block)
        for run in range(gemm.runs)
        for part in gemm.parts(run)
        for block in range(part.first, part.last + 1)
    ]
    assert computed == [(t, b) for t in range(gemm.tiles) for b in range(gemm.blocks)]


@settings(deadline=None, max_examples=200)
@given(work())
def test_loads_differ_from_the_mean_by_less_than_one_block(gemm):
    mean = gemm.total_weight / gemm.runs
    heaviest = INT8_WEIGHT if gemm.int8_blocks else 1
    loads = [sum(map(gemm.weight, gemm.parts(run))) for run in range(gemm.runs)]
    assert sum(loads) == gemm.total_weight
    assert all(load > 0 and abs(load - mean) < heaviest for load in loads)


@settings(deadline=None, max_examples=200)
@given(work())
def test_owner_is_the_run_that_computes_a_block(gemm):
    for run in range(gemm.runs):
        for part in gemm.parts(run):
            for block in range(part.first, part.last + 1):
                assert gemm.owner(part.tile, block) == run


@settings(deadline=None, max_examples=100)
@given(work())
def test_a_run_hands_on_its_first_and_its_last_tile_at_most(gemm):
    """The workspace of a thread block has room for two parts."""
    for run in range(gemm.runs):
        cut = [gemm.weight(part) < gemm.tile_weight for part in gemm.parts(run)]
        assert not any(cut[1:-1])


def test_schedule_of_a_small_gemm():
    """Two tiles of two INT4 blocks and one INT8 block: a weight of 8 for three thread blocks."""
    assert schedule(2, 2, 1, 3) == [
        [Part(0, 0, 1)],
        [Part(0, 2, 2), Part(1, 0, 0)],
        [Part(1, 1, 2)],
    ]


def test_a_cut_inside_an_int8_block_moves_to_its_end():
    assert schedule(1, 0, 3, 2) == [[Part(0, 0, 1)], [Part(0, 2, 2)]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 1), "tiles, int4_blocks, int8_blocks are 0, 1, 1"),
        ((1, 0, 0, 1), "tiles, int4_blocks, int8_blocks are 1, 0, 0"),
        ((1, 2, 1, 3), "runs is 3; the limit is 1 to 2"),
        ((1, 2, 1, 0), "runs is 0; the limit is 1 to 2"),
    ],
)
def test_impossible_work_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        schedule(*arguments)


def test_run_count_fills_the_gpu_evenly():
    assert run_count(total_weight=10**6, sms=108, residency=2) == 216
    assert run_count(total_weight=1600, sms=108, residency=3) == 108
    assert run_count(total_weight=40, sms=108, residency=3) == 5
    assert run_count(total_weight=3, sms=108, residency=3) == 1
