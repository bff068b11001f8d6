# SPDX-License-Identifier: Apache-2.0
"""FP8 W8A8 through ``torch._scaled_mm``: one scale per token and per output channel."""

import torch

from comet.speed.backends import GemmShape, Unavailable, Unsupported, Workload
from comet.speed.timer import copies_past_l2


def rowwise(shape: GemmShape, device: torch.device) -> Workload:
    """e4m3 operands, fp32 row scales, fast accumulation, bf16 output."""
    if torch.cuda.get_device_capability(device) < (8, 9):
        raise Unavailable("FP8 tensor cores need compute capability 8.9; this GPU is older")
    if shape.n % 16 or shape.k % 16:
        raise Unsupported("torch._scaled_mm needs n and k in multiples of 16")
    copies = copies_past_l2(shape.n * shape.k, device)
    weights = [_fp8(shape.n, shape.k, device) for _ in range(copies)]
    x = _fp8(shape.m, shape.k, device)
    token_scale = torch.rand(shape.m, 1, device=device)
    channel_scale = torch.rand(1, shape.n, device=device)

    def call(weight: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(
            x,
            weight.t(),
            scale_a=token_scale,
            scale_b=channel_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return Workload([lambda w=w: call(w) for w in weights], details={"copies": copies})


def _fp8(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    return torch.randn(rows, columns, device=device).to(torch.float8_e4m3fn)
