# SPDX-License-Identifier: Apache-2.0
"""Measured plans of KV4 decode: (D, tiles of 8 query heads, log2 of the batch's pages, log2 of a
sequence's pages) -> (warps, stages, thread blocks an SM).

Written by ``python -m comet.speed.tune_kv4`` on one NVIDIA H200.
"""

TABLE: dict[tuple[int, int, int, int], tuple[int, int, int]] = {
    (128, 1, 7, 4): (8, 3, 1),
    (128, 1, 9, 4): (2, 6, 2),
    (128, 1, 9, 6): (8, 3, 1),
    (128, 1, 10, 5): (4, 3, 2),
    (128, 1, 11, 4): (8, 3, 1),
    (128, 1, 11, 6): (2, 3, 4),
    (128, 1, 11, 8): (8, 3, 1),
    (128, 1, 12, 5): (12, 2, 1),
    (128, 1, 13, 4): (3, 2, 4),
    (128, 1, 13, 6): (12, 2, 1),
    (128, 1, 13, 8): (2, 3, 4),
    (128, 1, 15, 4): (3, 2, 4),
    (128, 1, 15, 6): (3, 2, 4),
    (128, 1, 15, 8): (12, 2, 1),
    (128, 1, 17, 4): (4, 3, 2),
    (128, 1, 17, 6): (3, 2, 4),
    (128, 1, 17, 8): (3, 2, 4),
}
