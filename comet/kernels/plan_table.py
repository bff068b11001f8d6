# SPDX-License-Identifier: Apache-2.0
"""Measured plans: (M up to, 64-channel rows, K blocks, may overlap launches) -> plan.

Written by ``python -m comet.speed.tune_sm90`` on one NVIDIA H200.
"""

from comet.kernels.w4ax_call import Plan

TABLE_SMS = 132
TABLE: dict[tuple[int, int, int, bool], Plan] = {
    (8, 64, 32, False): Plan("T8x1", split=2),
    (8, 64, 32, True): Plan("T8x1", split=3, prefetch=2, dependent_launch=True),
    (8, 64, 86, False): Plan("T8x1", split=3),
    (8, 64, 86, True): Plan("T8x1", split=6, prefetch=2, dependent_launch=True),
    (8, 64, 112, False): Plan("T8x2", split=3),
    (8, 64, 112, True): Plan(
        "T8x1", split=5, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 80, 40, False): Plan("T8x1", split=4),
    (8, 80, 40, True): Plan("T8x1", split=5, prefetch=2, dependent_launch=True),
    (8, 80, 108, False): Plan("T8x1", split=3),
    (8, 80, 108, True): Plan(
        "T8x1", split=5, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 96, 32, False): Plan("T8x1", split=2),
    (8, 96, 32, True): Plan("T8x1", split=4, prefetch=2, dependent_launch=True),
    (8, 104, 52, False): Plan("T8x1", split=2),
    (8, 104, 52, True): Plan("T8x1", split=2, prefetch=2, dependent_launch=True),
    (8, 104, 140, False): Plan("T8x2", split=2),
    (8, 104, 140, True): Plan("T8x2", split=2, prefetch=2, dependent_launch=True),
    (8, 128, 64, False): Plan("T16k4"),
    (8, 128, 64, True): Plan("T8x1", split=2, prefetch=2, dependent_launch=True),
    (8, 128, 224, False): Plan("T16k4"),
    (8, 128, 224, True): Plan("T16k4", prefetch=2, dependent_launch=True, early_trigger=True),
    (8, 128, 231, False): Plan("T8x1", split=2),
    (8, 128, 231, True): Plan("T16k4", prefetch=8, dependent_launch=True, early_trigger=True),
    (8, 160, 64, False): Plan("T8x1", split=2),
    (8, 160, 64, True): Plan(
        "T8x1", split=2, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 192, 32, False): Plan("T8x2"),
    (8, 192, 32, True): Plan("T8x2", prefetch=2, dependent_launch=True),
    (8, 192, 96, False): Plan("T8x2"),
    (8, 192, 96, True): Plan("T8x1", prefetch=2, dependent_launch=True),
    (8, 192, 384, False): Plan("T8x2"),
    (8, 192, 384, True): Plan(
        "T16s2", grid=132, shared_tiles=96, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 240, 40, False): Plan("T8x1"),
    (8, 240, 40, True): Plan("T16s2", grid=120, prefetch=2, dependent_launch=True),
    (8, 312, 52, False): Plan("T16x1"),
    (8, 312, 52, True): Plan("T16x1", prefetch=2, dependent_launch=True),
    (8, 344, 32, False): Plan("T16x1"),
    (8, 344, 32, True): Plan("T8x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (8, 432, 40, False): Plan("T16x1"),
    (8, 432, 40, True): Plan("T8x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (8, 448, 32, False): Plan("T16x1"),
    (8, 448, 32, True): Plan("T8x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (8, 560, 52, False): Plan("T16s2", grid=132, shared_tiles=148),
    (8, 560, 52, True): Plan(
        "T16s2", grid=264, shared_tiles=280, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 576, 96, False): Plan("T16s2", grid=264, shared_tiles=288),
    (8, 576, 96, True): Plan(
        "T16s2", grid=264, shared_tiles=288, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 768, 96, False): Plan("T16s2", grid=132),
    (8, 768, 96, True): Plan(
        "T16s2", grid=132, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (8, 896, 64, False): Plan("T16x1"),
    (8, 896, 64, True): Plan("T8x1", prefetch=8, dependent_launch=True, early_trigger=True),
    (8, 924, 64, False): Plan("T16x1"),
    (8, 924, 64, True): Plan("T16x1", prefetch=8, dependent_launch=True, early_trigger=True),
    (16, 64, 32, False): Plan("T16k4", split=2),
    (16, 64, 32, True): Plan("T16x1", split=3, prefetch=2, dependent_launch=True),
    (16, 64, 86, False): Plan("T16k4", split=2),
    (16, 64, 86, True): Plan(
        "T16k4", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (16, 64, 112, False): Plan("T16k4", split=2),
    (16, 64, 112, True): Plan(
        "T16k4", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (16, 80, 40, False): Plan("T16x1", split=3),
    (16, 80, 40, True): Plan("T16x1", split=3, prefetch=2, dependent_launch=True),
    (16, 80, 108, False): Plan("T16x1", split=3),
    (16, 80, 108, True): Plan(
        "T16x1", split=5, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 96, 32, False): Plan("T16k4"),
    (16, 96, 32, True): Plan("T16x1", split=2, prefetch=2, dependent_launch=True),
    (16, 104, 52, False): Plan("T16k4"),
    (16, 104, 52, True): Plan("T16x1", split=2, prefetch=2, dependent_launch=True),
    (16, 104, 140, False): Plan("T16x2", split=2),
    (16, 104, 140, True): Plan("T16x2", split=2, prefetch=2, dependent_launch=True),
    (16, 128, 64, False): Plan("T16k4"),
    (16, 128, 64, True): Plan("T16k4", prefetch=2, dependent_launch=True, early_trigger=True),
    (16, 128, 224, False): Plan("T16k4"),
    (16, 128, 224, True): Plan("T16k4", prefetch=2, dependent_launch=True, early_trigger=True),
    (16, 128, 231, False): Plan("T16k4"),
    (16, 128, 231, True): Plan("T16k4", prefetch=2, dependent_launch=True),
    (16, 160, 64, False): Plan("T16x1", split=2),
    (16, 160, 64, True): Plan("T16x2", prefetch=2, dependent_launch=True),
    (16, 192, 32, False): Plan("T16x1"),
    (16, 192, 32, True): Plan("T16x2", prefetch=2, dependent_launch=True),
    (16, 192, 96, False): Plan("T16x1", split=2),
    (16, 192, 96, True): Plan(
        "T16s2", grid=132, shared_tiles=96, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 192, 384, False): Plan("T16s2", grid=132, shared_tiles=96),
    (16, 192, 384, True): Plan(
        "T16s2", grid=132, shared_tiles=96, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 240, 40, False): Plan("T16x1"),
    (16, 240, 40, True): Plan("T16s2", grid=120, prefetch=2, dependent_launch=True),
    (16, 312, 52, False): Plan("T16x1"),
    (16, 312, 52, True): Plan("T16x1", prefetch=2, dependent_launch=True),
    (16, 344, 32, False): Plan("T16x1"),
    (16, 344, 32, True): Plan(
        "T16s2", grid=172, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 432, 40, False): Plan("T16x1"),
    (16, 432, 40, True): Plan("T16x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (16, 448, 32, False): Plan("T16x1"),
    (16, 448, 32, True): Plan("T16x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (16, 560, 52, False): Plan("T16s2", grid=132, shared_tiles=148),
    (16, 560, 52, True): Plan(
        "T16s2", grid=264, shared_tiles=280, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 576, 96, False): Plan("T16s2", grid=132, shared_tiles=156),
    (16, 576, 96, True): Plan(
        "T16s2", grid=264, shared_tiles=288, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 768, 96, False): Plan("T16s2", grid=132),
    (16, 768, 96, True): Plan(
        "T16s2", grid=132, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (16, 896, 64, False): Plan("T16x1"),
    (16, 896, 64, True): Plan("T16x1", prefetch=8, dependent_launch=True, early_trigger=True),
    (16, 924, 64, False): Plan("T16s2", grid=264, shared_tiles=198),
    (16, 924, 64, True): Plan(
        "T16s2", grid=264, shared_tiles=198, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (32, 64, 112, False): Plan("T32k4", split=2),
    (32, 64, 112, True): Plan("T32k4", split=2, prefetch=2, dependent_launch=True),
    (32, 128, 64, False): Plan("T32x1", split=2),
    (32, 128, 64, True): Plan("T32x2", split=2, prefetch=2, dependent_launch=True),
    (32, 192, 32, False): Plan("T32x1"),
    (32, 192, 32, True): Plan("T32x1", split=2, prefetch=2, dependent_launch=True),
    (32, 240, 40, False): Plan("T32x1"),
    (32, 240, 40, True): Plan("T32k2x2", prefetch=2, dependent_launch=True),
    (32, 448, 32, False): Plan("T32s2", grid=224),
    (32, 448, 32, True): Plan("T32x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (32, 896, 64, False): Plan("T32x2"),
    (32, 896, 64, True): Plan("T32x2", prefetch=8, dependent_launch=True, early_trigger=True),
    (64, 64, 32, False): Plan("T32x1", split=2),
    (64, 64, 32, True): Plan("T64x1", split=2, prefetch=8, dependent_launch=True),
    (64, 64, 86, False): Plan("T64x1", split=5),
    (64, 64, 86, True): Plan("T64x1", split=5, prefetch=2, dependent_launch=True),
    (64, 64, 112, False): Plan("T64x1", split=5),
    (64, 64, 112, True): Plan("T64x1", split=5, prefetch=2, dependent_launch=True),
    (64, 80, 40, False): Plan("T64x1", split=4),
    (64, 80, 40, True): Plan("T64x1", split=4, prefetch=2, dependent_launch=True),
    (64, 80, 108, False): Plan("T64x1", split=4),
    (64, 80, 108, True): Plan(
        "T64x1", split=4, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 96, 32, False): Plan("T64x1", split=2),
    (64, 96, 32, True): Plan("T64x1", split=2, prefetch=8, dependent_launch=True),
    (64, 104, 52, False): Plan("T64x1", split=2),
    (64, 104, 52, True): Plan("T64x1", split=3, prefetch=2, dependent_launch=True),
    (64, 104, 140, False): Plan("T64x1", split=3),
    (64, 104, 140, True): Plan(
        "T64x1", split=3, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 128, 64, False): Plan("T64x1", split=2),
    (64, 128, 64, True): Plan("T64k2", split=2, prefetch=2, dependent_launch=True),
    (64, 128, 224, False): Plan("T64s3", grid=132, shared_tiles=43),
    (64, 128, 224, True): Plan(
        "T64s3", grid=132, shared_tiles=43, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 128, 231, False): Plan("T64s3", grid=132, shared_tiles=43),
    (64, 128, 231, True): Plan(
        "T64s3", grid=132, shared_tiles=43, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 160, 64, False): Plan("T64x1", split=2),
    (64, 160, 64, True): Plan("T64x1", split=2, prefetch=2, dependent_launch=True),
    (64, 192, 32, False): Plan("T64x1", split=2),
    (64, 192, 32, True): Plan(
        "T64x1", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (64, 192, 96, False): Plan("T64x1", split=2),
    (64, 192, 96, True): Plan("T64x1", split=2, prefetch=2, dependent_launch=True),
    (64, 192, 384, False): Plan("T64s3", grid=132, shared_tiles=64),
    (64, 192, 384, True): Plan(
        "T64s3", grid=132, shared_tiles=64, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 240, 40, False): Plan("T64x1"),
    (64, 240, 40, True): Plan("T64x1"),
    (64, 312, 52, False): Plan("T64s3", grid=104),
    (64, 312, 52, True): Plan("T64s3", grid=104, prefetch=2, dependent_launch=True),
    (64, 344, 32, False): Plan("T64s3", grid=115),
    (64, 344, 32, True): Plan("T64s3", grid=115, prefetch=2, dependent_launch=True),
    (64, 432, 40, False): Plan("T64s2", grid=216),
    (64, 432, 40, True): Plan(
        "T64s2", grid=216, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (64, 448, 32, False): Plan("T64s2", grid=224),
    (64, 448, 32, True): Plan(
        "T64s2", grid=224, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (64, 560, 52, False): Plan("T64s3", grid=132, shared_tiles=187),
    (64, 560, 52, True): Plan(
        "T64s3", grid=132, shared_tiles=187, prefetch=8, dependent_launch=True
    ),
    (64, 576, 96, False): Plan("T64s3", grid=132, shared_tiles=192),
    (64, 576, 96, True): Plan(
        "T64s3", grid=132, shared_tiles=192, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 768, 96, False): Plan("T64s3", grid=132),
    (64, 768, 96, True): Plan(
        "T64s3", grid=132, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 896, 64, False): Plan("T64s3", grid=132, shared_tiles=167),
    (64, 896, 64, True): Plan(
        "T64s3", grid=132, shared_tiles=167, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (64, 924, 64, False): Plan("T64s3", grid=132, shared_tiles=176),
    (64, 924, 64, True): Plan(
        "T64s3", grid=132, shared_tiles=176, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (128, 64, 112, False): Plan("T128k2", split=2),
    (128, 64, 112, True): Plan(
        "T128k2", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (128, 128, 64, False): Plan("T128x2", split=2),
    (128, 128, 64, True): Plan(
        "T128x2", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (128, 192, 32, False): Plan("T128s2", grid=96),
    (128, 192, 32, True): Plan(
        "T128s2", grid=96, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (128, 240, 40, False): Plan("T128s2", grid=120),
    (128, 240, 40, True): Plan("T128s2", grid=120, prefetch=2, dependent_launch=True),
    (128, 448, 32, False): Plan("T128s2", grid=132),
    (128, 448, 32, True): Plan(
        "T128s2", grid=132, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (128, 896, 64, False): Plan("T128s2", grid=132, shared_tiles=184),
    (128, 896, 64, True): Plan(
        "T128s2", grid=132, shared_tiles=184, prefetch=2, dependent_launch=True
    ),
    (256, 64, 32, False): Plan("T128k2"),
    (256, 64, 32, True): Plan("T128k2", prefetch=2, dependent_launch=True),
    (256, 64, 86, False): Plan("T128x2", split=2),
    (256, 64, 86, True): Plan(
        "T128x2", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (256, 64, 112, False): Plan("T128x2", split=2),
    (256, 64, 112, True): Plan(
        "T128x2", split=2, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (256, 80, 40, False): Plan("T128s2", grid=80),
    (256, 80, 40, True): Plan("T128s2", grid=80, prefetch=2, dependent_launch=True),
    (256, 80, 108, False): Plan("T128s2", grid=132, shared_tiles=80),
    (256, 80, 108, True): Plan(
        "T128s2", grid=132, shared_tiles=80, prefetch=8, dependent_launch=True
    ),
    (256, 96, 32, False): Plan("T128s2", grid=96),
    (256, 96, 32, True): Plan("T128s2", grid=96, prefetch=2, dependent_launch=True),
    (256, 104, 52, False): Plan("T128s2", grid=104),
    (256, 104, 52, True): Plan("T128s2", grid=104, prefetch=2, dependent_launch=True),
    (256, 104, 140, False): Plan("T128s2", grid=132, shared_tiles=104),
    (256, 104, 140, True): Plan(
        "T128s2", grid=132, shared_tiles=104, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (256, 128, 64, False): Plan("T128s2", grid=128),
    (256, 128, 64, True): Plan("T128s2", grid=128, prefetch=2, dependent_launch=True),
    (256, 128, 224, False): Plan("T128s2", grid=128),
    (256, 128, 224, True): Plan("T128s2", grid=128),
    (256, 128, 231, False): Plan("T128s2", grid=128),
    (256, 128, 231, True): Plan("T128s2", grid=128),
    (256, 160, 64, False): Plan("T128s3", grid=108),
    (256, 160, 64, True): Plan("T128s3", grid=108, prefetch=2, dependent_launch=True),
    (256, 192, 32, False): Plan("T128s3", grid=128),
    (256, 192, 32, True): Plan("T128s3", grid=128, prefetch=2, dependent_launch=True),
    (256, 192, 96, False): Plan("T128s3", grid=128),
    (256, 192, 96, True): Plan("T128s3", grid=128, prefetch=2, dependent_launch=True),
    (256, 192, 384, False): Plan("T128s3", grid=128),
    (256, 192, 384, True): Plan(
        "T128s3", grid=128, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (256, 240, 40, False): Plan("T256s2", grid=120),
    (256, 240, 40, True): Plan(
        "T256s2", grid=120, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (256, 312, 52, False): Plan("T128s2", grid=132, shared_tiles=180),
    (256, 312, 52, True): Plan(
        "T128s2", grid=132, shared_tiles=180, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (256, 344, 32, False): Plan("T128s3", grid=132),
    (256, 344, 32, True): Plan("T128s3", grid=132, prefetch=2, dependent_launch=True),
    (256, 432, 40, False): Plan("T128s2", grid=132, shared_tiles=168),
    (256, 432, 40, True): Plan(
        "T256s2", grid=132, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (256, 448, 32, False): Plan("T256s2", grid=132),
    (256, 448, 32, True): Plan(
        "T256s2", grid=132, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (256, 560, 52, False): Plan("T128s3", grid=132),
    (256, 560, 52, True): Plan("T128s3", grid=132, prefetch=2, dependent_launch=True),
    (256, 576, 96, False): Plan("T256s2", grid=132, shared_tiles=156),
    (256, 576, 96, True): Plan("T128s3", grid=132, prefetch=8, dependent_launch=True),
    (256, 768, 96, False): Plan("T256s2", grid=132, stagger=1),
    (256, 768, 96, True): Plan("T256s2", grid=132, stagger=1),
    (256, 896, 64, False): Plan("T128s2", grid=132),
    (256, 896, 64, True): Plan(
        "T256s2", grid=132, shared_tiles=184, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (256, 924, 64, False): Plan("T256s2", grid=132, shared_tiles=198, stagger=2),
    (256, 924, 64, True): Plan(
        "T256s2", grid=132, shared_tiles=198, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (512, 64, 112, False): Plan("T128s2", grid=128),
    (512, 64, 112, True): Plan(
        "T128s2", grid=128, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (512, 128, 64, False): Plan("T256s2", grid=128),
    (512, 128, 64, True): Plan("T256s2", grid=128, prefetch=2, dependent_launch=True),
    (512, 192, 32, False): Plan("T128s3", grid=132),
    (512, 192, 32, True): Plan("T128s3", grid=132, prefetch=2, dependent_launch=True),
    (512, 240, 40, False): Plan("T256s2", grid=132),
    (512, 240, 40, True): Plan("T256s2", grid=132, prefetch=2, dependent_launch=True),
    (512, 448, 32, False): Plan("T128s2", grid=132, stagger=3),
    (512, 448, 32, True): Plan("T128s2", grid=132, prefetch=2, dependent_launch=True),
    (512, 896, 64, False): Plan("T256s2", grid=132, stagger=1),
    (512, 896, 64, True): Plan("T256s2", grid=132, stagger=1),
    (1024, 64, 112, False): Plan("T256s2", grid=128),
    (1024, 64, 112, True): Plan(
        "T256s2", grid=128, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (1024, 128, 64, False): Plan("T256s2", grid=132, stagger=1),
    (1024, 128, 64, True): Plan(
        "T256s2", grid=132, prefetch=8, dependent_launch=True, early_trigger=True
    ),
    (1024, 192, 32, False): Plan("T256s2", grid=132, stagger=1),
    (1024, 192, 32, True): Plan(
        "T256s2", grid=132, prefetch=2, dependent_launch=True, early_trigger=True
    ),
    (1024, 240, 40, False): Plan("T128s3", grid=132),
    (1024, 240, 40, True): Plan("T128s3", grid=132),
    (1024, 448, 32, False): Plan("T256s2", grid=132, stagger=1),
    (1024, 448, 32, True): Plan("T256s2", grid=132, stagger=1),
    (1024, 896, 64, False): Plan("T256s2", grid=132, stagger=2),
    (1024, 896, 64, True): Plan("T256s2", grid=132, stagger=2),
    (1025, 64, 112, False): Plan("T256s2", grid=132, stagger=2),
    (1025, 64, 112, True): Plan("T256s2", grid=132, stagger=2),
    (1025, 128, 64, False): Plan("T256s2", grid=132),
    (1025, 128, 64, True): Plan("T256s2", grid=132),
    (1025, 192, 32, False): Plan("T256s2", grid=132),
    (1025, 192, 32, True): Plan(
        "T256s2", grid=132, prefetch=8, dependent_launch=True, early_trigger=True, stagger=2
    ),
    (1025, 240, 40, False): Plan("T256s2", grid=132, shared_tiles=168),
    (1025, 240, 40, True): Plan("T128s3", grid=132, prefetch=2, dependent_launch=True, stagger=1),
    (1025, 448, 32, False): Plan("T256s2", grid=132, stagger=2),
    (1025, 448, 32, True): Plan("T256s2", grid=132, prefetch=8, dependent_launch=True),
    (1025, 896, 64, False): Plan("T256s2", grid=132),
    (1025, 896, 64, True): Plan("T256s2", grid=132),
}
