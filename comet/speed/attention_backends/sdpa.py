# SPDX-License-Identifier: Apache-2.0
"""PyTorch's flash attention in bf16 on contiguous K and V."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from comet.speed.attention_backends import AttentionShape
from comet.speed.backends import Workload
from comet.speed.timer import copies_past_l2


def bf16(shape: AttentionShape, device: torch.device) -> Workload:
    """The query heads of a KV head are the rows of one query, which is fair for decoding.

    PyTorch's own grouped-query flag may fall back to a slow path; any but flash is refused here.
    """
    size = (shape.batch, shape.kv_heads, shape.context, shape.head_dim)
    copies = copies_past_l2(2 * shape.kv_elements, device)
    options = {"device": device, "dtype": torch.bfloat16}
    caches = [[torch.randn(size, **options) for _ in range(2)] for _ in range(copies)]
    query = shape.query(device).view(shape.batch, shape.kv_heads, shape.group, shape.head_dim)

    def call(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(query, keys, values)

    return Workload(
        [lambda c=c: call(*c) for c in caches],
        details={"copies": copies, "kv_layout": "contiguous"},
    )
