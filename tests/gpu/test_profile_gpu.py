# SPDX-License-Identifier: Apache-2.0
"""Profiling a small GEMM: real counters, or the reason why there are none; real readings."""

import pytest
import torch

from comet.kernels.library import library_path
from comet.speed.profile import (
    COUNTED_SIGN,
    WATCHED,
    ProfileOptions,
    profile_cases,
    profile_records,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_counters_and_readings_of_cublas():
    cases = profile_cases(["LLaMA-3-8B"], [16], ["o"])
    options = ProfileOptions(repeats=2, watch_seconds=0.3)
    made = profile_records(cases, ["cublas-bf16"], library_path(), {}, 0, options)
    watched = {r.metric for r in made if r.status == "ok" and r.metric in WATCHED}
    assert watched >= {name for name in WATCHED if not name.startswith("gpm_")}
    counted = {r.metric: r for r in made if r.metric not in WATCHED}
    if counted[COUNTED_SIGN].status == "skipped":
        pytest.skip(counted[COUNTED_SIGN].reason)
    assert counted[COUNTED_SIGN].status == "ok", counted[COUNTED_SIGN].reason
    assert len(counted["dram_throughput"].samples) == 2
    assert all(0 < r.median <= 100.5 for r in counted.values() if r.unit == "percent")
    assert counted["cycles_active_max"].median >= counted["cycles_active_avg"].median
    # A matrix of 32 MiB that is read from memory: not from cache, and not in no time.
    assert 5 < counted["time_profiled"].median < 100
