# SPDX-License-Identifier: Apache-2.0
"""What the tuner of the sm_90a GEMM tries and keeps, with made-up times."""

import pytest

from comet.kernels.w4ax_call import Instance, Plan
from comet.speed.tune_sm90 import OVERLAPPED, best_plans, candidates

SMS = 132


def instance(name, tokens, channels, stream, residency, stages=6, warpgroups=2) -> Instance:
    return Instance(0, name, tokens, channels, stream, residency, stages, warpgroups, 1)


AVAILABLE = {
    one.name: one
    for one in (
        instance("T64x1", 64, 64, False, 3, warpgroups=1),
        instance("T64k4", 64, 64, False, 1, warpgroups=4),
        instance("T128s2", 128, 128, True, 1, stages=7),
        instance("T128s3", 128, 192, True, 1, stages=4, warpgroups=3),
    )
}


class Layer:
    """Times by a function of the plan; remembers what was asked."""

    def __init__(self, n, k, time):
        self.n, self.blocks, self.asked = n, k // 128, []
        self._time = time

    def set_tokens(self, m):
        self.m = m

    def time(self, plan, _options):
        self.asked.append(plan)
        return self._time(plan)


def test_persistent_kernels_are_also_tried_staggered():
    plans = list(candidates(512, 28672, 32, SMS, AVAILABLE))
    assert {plan.stagger for plan in plans if plan.instance == "T128s2"} == {0, 3, 6}
    assert {plan.stagger for plan in plans if plan.instance == "T128s3"} == {0, 1}
    one_tile_a_block = [p for p in candidates(128, 4096, 112, SMS, AVAILABLE) if p.grid == 32]
    assert {plan.stagger for plan in one_tile_a_block} == {0}


def test_the_fastest_plan_is_found_and_overlap_is_tried_for_the_best_alone():
    def time(plan: Plan) -> float:
        base = {"T64k4": 10.0, "T64x1": 12.0, "T128s2": 14.0, "T128s3": 15.0}[plan.instance]
        return base + plan.split - 2.0 * (plan.dependent_launch and plan.prefetch == 2)

    layer = Layer(8192, 8192, time)
    found = best_plans(layer, 64, SMS, AVAILABLE)
    assert found[False] == (Plan("T64k4"), pytest.approx(11.0))
    plan, best = found[True]
    assert (plan.instance, plan.dependent_launch, plan.prefetch) == ("T64k4", True, 2)
    assert best == pytest.approx(9.0)
    overlapped = {(p.instance, p.split, p.grid) for p in layer.asked if p.dependent_launch}
    assert len(overlapped) <= OVERLAPPED


def test_overlap_is_not_used_where_it_costs():
    layer = Layer(8192, 8192, lambda plan: 10.0 + plan.split + plan.dependent_launch)
    found = best_plans(layer, 64, SMS, AVAILABLE)
    assert found[True] == found[False]
