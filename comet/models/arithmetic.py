# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of the parts of a model that stay in 16 bit."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

TF32 = "tf32"


def tensor_type(arithmetic: str) -> torch.dtype:
    """Type of tensors: ``tf32`` is about products of float32."""
    return torch.float32 if arithmetic == TF32 else getattr(torch, arithmetic)


def scoring_type(arithmetic: str) -> torch.dtype:
    """Type of tensors while a model is scored; sets how a GPU multiplies float32 matrices.

    ``tf32`` rounds the factors to 11 significant bits, as many as float16 has, and adds in float32.
    """
    torch.set_float32_matmul_precision("high" if arithmetic == TF32 else "highest")
    return tensor_type(arithmetic)


@contextmanager
def exact_products() -> Iterator[None]:
    """float32 products of float32 matrices, for as long as the context lasts."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
