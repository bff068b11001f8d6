# SPDX-License-Identifier: Apache-2.0
"""Measured plans of KV4 decode: (D, tiles of 8 query heads, log2 of the batch's pages, log2 of a
sequence's pages) -> (warps, stages, thread blocks an SM).

Written by ``python -m comet.speed.tune_kv4``.
"""

TABLE: dict[tuple[int, int, int, int], tuple[int, int, int]] = {}
