# SPDX-License-Identifier: Apache-2.0
"""vLLM's GEMM kernels, loaded from its compiled library without importing vLLM.

Operands are random and valid in shape and type; packing is each library's own.
"""

from pathlib import Path

import torch

from comet.speed.backends import GemmShape, Workload
from comet.speed.timer import copies_past_l2
from comet.speed.vllm_site import load_library, vllm_file

LIBRARY = Path("vllm") / "_C_stable_libtorch.abi3.so"
GROUP = 128
# vLLM's identifier of its type uint4b8 (4 bits, unsigned, bias 8): mantissa, bias, NaN kind.
UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50


def _vllm():
    load_library(vllm_file(LIBRARY, "vLLM's kernel library"))
    return torch.ops._C


def _copies(shape: GemmShape, bytes_each: int, device: torch.device) -> range:
    return range(copies_past_l2(bytes_each, device))


def _w8a8(shape: GemmShape, device: torch.device, dtype: torch.dtype) -> Workload:
    vllm = _vllm()

    def random(rows: int, columns: int) -> torch.Tensor:
        if dtype == torch.int8:
            return torch.randint(-127, 128, (rows, columns), device=device, dtype=dtype)
        return torch.randn(rows, columns, device=device).to(dtype)

    weights = [random(shape.n, shape.k) for _ in _copies(shape, shape.n * shape.k, device)]
    x = random(shape.m, shape.k)
    token_scale = torch.rand(shape.m, 1, device=device)
    channel_scale = torch.rand(shape.n, 1, device=device)
    out = torch.empty(shape.m, shape.n, device=device, dtype=torch.bfloat16)
    calls = [
        lambda w=w: vllm.cutlass_scaled_mm(out, x, w.t(), token_scale, channel_scale, None)
        for w in weights
    ]
    return Workload(calls, details={"copies": len(calls)})


def cutlass_int8(shape: GemmShape, device: torch.device) -> Workload:
    """CUTLASS W8A8 int8, scales per token and output channel."""
    return _w8a8(shape, device, torch.int8)


def cutlass_fp8(shape: GemmShape, device: torch.device) -> Workload:
    """CUTLASS W8A8 fp8, scales per token and output channel."""
    return _w8a8(shape, device, torch.float8_e4m3fn)


def _packed_along_k(shape: GemmShape, device: torch.device) -> torch.Tensor:
    """Random 4-bit codes, eight of consecutive k in one int32: [k / 8, n]."""
    size = (shape.k // 8, shape.n)
    return torch.randint(-(2**31), 2**31, size, device=device, dtype=torch.int32)


def _group_scales(shape: GemmShape, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(shape.k // GROUP, shape.n, device=device).to(dtype)


def cutlass_w4a8(shape: GemmShape, device: torch.device) -> Workload:
    """CUTLASS W4A8: int4 weights, fp8 activations, fp8 scale per group of 128."""
    vllm = _vllm()
    group_scales = vllm.cutlass_pack_scale_fp8(_group_scales(shape, device, torch.float8_e4m3fn))
    channel_scale = torch.rand(shape.n, 1, device=device)
    token_scale = torch.rand(shape.m, 1, device=device)
    x = torch.randn(shape.m, shape.k, device=device).to(torch.float8_e4m3fn)
    weights = []
    for _ in _copies(shape, shape.n * shape.k // 2, device):
        columns = _packed_along_k(shape, device).t().contiguous().t()
        weights.append(vllm.cutlass_encode_and_reorder_int4b(columns))
    fixed = (group_scales, GROUP, channel_scale, token_scale, torch.bfloat16, None)
    calls = [lambda w=w: vllm.cutlass_w4a8_mm(x, w, *fixed) for w in weights]
    return Workload(calls, details={"copies": len(calls)})


def machete_w4a16(shape: GemmShape, device: torch.device) -> Workload:
    """Machete W4A16, group 128."""
    vllm = _vllm()
    scales = _group_scales(shape, device, torch.bfloat16)
    x = torch.randn(shape.m, shape.k, device=device, dtype=torch.bfloat16)
    weights = []
    for _ in _copies(shape, shape.n * shape.k // 2, device):
        columns = _packed_along_k(shape, device).t().contiguous().t()
        weights.append(vllm.machete_prepack_B(columns, x.dtype, UINT4B8, scales.dtype))
    fixed = (UINT4B8, torch.bfloat16, scales, None, GROUP, None, None, None)
    calls = [lambda w=w: vllm.machete_mm(x, w, *fixed) for w in weights]
    return Workload(calls, details={"copies": len(calls)})


def _marlin(shape: GemmShape, device: torch.device, int8: bool) -> Workload:
    vllm = _vllm()
    none = torch.empty(0, device=device, dtype=torch.int32)
    scales = _group_scales(shape, device, torch.bfloat16)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    workspace = torch.zeros(sms * 4, device=device, dtype=torch.int32)
    x = torch.randn(shape.m, shape.k, device=device, dtype=torch.bfloat16)
    token_scale = None
    if int8:
        # With int8 activations group scales travel as 16-bit integers, and what they share is part
        # of the token scales.
        scales = torch.randint_like(scales, 1, 4097).to(torch.int16).view(scales.dtype)
        x = torch.randint(-127, 128, (shape.m, shape.k), device=device, dtype=torch.int8)
        token_scale = torch.rand(shape.m, 1, device=device)
    weights = [
        vllm.gptq_marlin_repack(_packed_along_k(shape, device), none, shape.k, shape.n, 4, int8)
        for _ in _copies(shape, shape.n * shape.k // 2, device)
    ]

    def call(weight: torch.Tensor) -> torch.Tensor:
        sizes = (shape.m, shape.n, shape.k)
        flags = (True, False, True, False)  # full K, no atomics, fp32 reduction, integer zeros
        operands = (x, None, weight, None, scales, token_scale, None, None, none, none)
        return vllm.marlin_gemm(*operands, workspace, UINT4B8, *sizes, *flags)

    return Workload([lambda w=w: call(w) for w in weights], details={"copies": len(weights)})


def marlin_w4a16(shape: GemmShape, device: torch.device) -> Workload:
    """Marlin W4A16, group 128."""
    return _marlin(shape, device, int8=False)


def marlin_w4a8(shape: GemmShape, device: torch.device) -> Workload:
    """Marlin with int8 activations, 4-bit weights, group 128."""
    return _marlin(shape, device, int8=True)
