# SPDX-License-Identifier: Apache-2.0
"""Measured plans: (M up to, 64-channel rows, K blocks, dependent launch) -> plan.

Written by ``python -m comet.speed.tune_sm90`` on one NVIDIA H200 (132 SMs).
"""

from comet.kernels.w4ax_call import Plan

TABLE_SMS = 132
TABLE: dict[tuple[int, int, int, bool], Plan] = {}
