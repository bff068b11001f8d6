# SPDX-License-Identifier: Apache-2.0
"""cuBLAS through torch: bf16, the denominator of every ratio, and int8."""

import torch

from comet.speed.backends import GemmShape, Unsupported, Workload
from comet.speed.timer import copies_past_l2


def bf16(shape: GemmShape, device: torch.device) -> Workload:
    """``torch.mm`` on random bf16 data, output in place."""
    copies = copies_past_l2(2 * shape.n * shape.k, device)
    weights = [
        torch.randn(shape.n, shape.k, device=device, dtype=torch.bfloat16) for _ in range(copies)
    ]
    x = torch.randn(shape.m, shape.k, device=device, dtype=torch.bfloat16)
    out = torch.empty(shape.m, shape.n, device=device, dtype=torch.bfloat16)
    calls = [lambda w=w: torch.mm(x, w.t(), out=out) for w in weights]
    return Workload(calls, details={"cublas": torch.version.cuda, "copies": copies})


def int8(shape: GemmShape, device: torch.device) -> Workload:
    """``torch._int_mm``: the integer product alone, without scales, for M above 16."""
    if shape.m <= 16:
        raise Unsupported("torch._int_mm needs more than 16 tokens; use a larger m")
    copies = copies_past_l2(shape.n * shape.k, device)
    options = {"device": device, "dtype": torch.int8}
    weights = [torch.randint(-127, 128, (shape.n, shape.k), **options) for _ in range(copies)]
    x = torch.randint(-127, 128, (shape.m, shape.k), **options)
    out = torch.empty(shape.m, shape.n, device=device, dtype=torch.int32)
    calls = [lambda w=w: torch._int_mm(x, w.t(), out=out) for w in weights]
    return Workload(calls, details={"copies": copies, "scope": "GEMM only, int32 output"})
