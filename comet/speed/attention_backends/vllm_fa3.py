# SPDX-License-Identifier: Apache-2.0
"""vLLM's FlashAttention 3 on a paged cache, loaded from its library without importing vLLM.

The schedule is computed once and shared by all calls, and a context is split in up to 32 parts, as
vLLM does under CUDA graphs.
"""

from pathlib import Path

import torch

from comet.speed.attention_backends import AttentionShape, random_block_table
from comet.speed.backends import Unavailable, Workload
from comet.speed.timer import copies_past_l2
from comet.speed.vllm_site import load_library, vllm_file

LIBRARY = Path("vllm", "vllm_flash_attn", "_vllm_fa3_C.abi3.so")
PAGE = 64
MOST_SPLITS = 32
NO_WINDOW = (-1, -1)


def _flash(device: torch.device):
    path = vllm_file(LIBRARY, "vLLM's FlashAttention 3")
    if torch.cuda.get_device_capability(device)[0] != 9:
        raise Unavailable("FlashAttention 3 runs on compute capability 9.x (H100, H200) only")
    load_library(path)
    return torch.ops._vllm_fa3_C


def bf16(shape: AttentionShape, device: torch.device) -> Workload:
    """bf16 queries and cache."""
    return _workload(shape, device, torch.bfloat16)


def fp8(shape: AttentionShape, device: torch.device) -> Workload:
    """e4m3 queries and cache, one scale a sequence and KV head, bf16 output."""
    return _workload(shape, device, torch.float8_e4m3fn)


def _workload(shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> Workload:
    flash = _flash(device)
    pages = -(-shape.context // PAGE)
    size = (shape.batch * pages, PAGE, shape.kv_heads, shape.head_dim)
    copies = copies_past_l2(shape.kv_elements * dtype.itemsize, device)
    options = {"device": device, "dtype": torch.bfloat16}
    caches = [[torch.randn(size, **options).to(dtype) for _ in range(2)] for _ in range(copies)]
    tables = [random_block_table(shape.batch, pages, device) for _ in range(copies)]
    query = shape.query(device).to(dtype)
    out = torch.empty(query.shape, **options)
    descale = None
    if dtype != torch.bfloat16:
        descale = torch.ones(1, device=device).expand(shape.batch, shape.kv_heads)
    lengths = torch.full((shape.batch,), shape.context, device=device, dtype=torch.int32)
    starts = torch.arange(shape.batch + 1, device=device, dtype=torch.int32)
    schedule = flash.get_scheduler_metadata(
        shape.batch,
        1,  # query tokens of a sequence
        shape.context,
        shape.heads,
        shape.kv_heads,
        *(shape.head_dim, shape.head_dim),
        dtype,
        lengths,
        starts,
        *(None, None, None, None),  # lengths of K, of new K, of Q; left padding
        PAGE,
        0,  # new tokens of K
        True,  # causal
        *NO_WINDOW,
        False,  # no soft cap
        MOST_SPLITS,
        None,  # packing of grouped queries: its own choice
        0,  # SMs kept free
    )

    def call(keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        flash.fwd(
            query,
            keys,
            values,
            *(None, None, None),  # new K, new V, q_v
            out,
            starts,
            *(None, None, None),  # offsets of K, of new K; lengths of Q
            lengths,
            1,
            shape.context,
            table,
            *(None, None, None, None, None),  # batch index, left padding, rotary embedding
            *(descale, descale, descale),
            shape.head_dim**-0.5,
            True,
            *NO_WINDOW,
            0.0,
            True,  # interleaved rotary embedding, unused
            schedule,
            MOST_SPLITS,
            None,
            0,
            None,  # attention sinks
            *(1, 0, None),  # one rank
        )
        return out

    return Workload(
        [lambda c=c, t=t: call(*c, t) for c, t in zip(caches, tables, strict=True)],
        details={"copies": copies, "page": PAGE, "most_splits": MOST_SPLITS},
    )
