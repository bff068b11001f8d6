# SPDX-License-Identifier: Apache-2.0
"""Decode attention behind one interface: a shape in, calls on rotated KV caches out."""

from dataclasses import dataclass, fields
from importlib import import_module

import torch

from comet.errors import UserError
from comet.speed.backends import Workload


@dataclass(frozen=True)
class AttentionShape:
    """One decode step of a layer: a new token a sequence, ``context`` tokens in each cache."""

    batch: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, case: dict) -> "AttentionShape":
        """The shape of an attention case."""
        return cls(**{field.name: case[field.name] for field in fields(cls)})

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.heads // self.kv_heads

    @property
    def kv_elements(self) -> int:
        """Elements of K and V together."""
        return 2 * self.batch * self.context * self.kv_heads * self.head_dim

    def query(self, device: torch.device) -> torch.Tensor:
        """Random bf16 [batch, heads, head_dim]."""
        size = (self.batch, self.heads, self.head_dim)
        return torch.randn(size, device=device, dtype=torch.bfloat16)


@dataclass(frozen=True)
class AttentionBackend:
    """A module of this package and its function (shape, device) -> Workload."""

    module: str
    function: str

    def load(self, shape: AttentionShape, device: torch.device) -> Workload:
        """Make caches and calls; each call returns [batch, heads, head_dim] elements.

        Raises:
            Unavailable: the library, the GPU or the shape is not there.
        """
        function = getattr(import_module(f"{__name__}.{self.module}"), self.function)
        return function(shape, device)


ATTENTION_BACKENDS = {
    "comet-kv4": AttentionBackend("comet_kv4", "kv4"),
    "sdpa-bf16": AttentionBackend("sdpa", "bf16"),
    "vllm-fa3-bf16": AttentionBackend("vllm_fa3", "bf16"),
    "vllm-fa3-fp8": AttentionBackend("vllm_fa3", "fp8"),
    "vllm-turboquant-4bit": AttentionBackend("vllm_turboquant", "four_bit"),
}


def attention_backend_of(name: str) -> AttentionBackend:
    """The backend of this name.

    Raises:
        UserError: there is none.
    """
    if name not in ATTENTION_BACKENDS:
        known = ", ".join(ATTENTION_BACKENDS)
        raise UserError(f"attention backend {name!r} is unknown; use one of {known}")
    return ATTENTION_BACKENDS[name]


def random_block_table(batch: int, pages: int, device: torch.device) -> torch.Tensor:
    """int32 [batch, pages]: every page of a pool of batch x pages once, in random order."""
    order = torch.randperm(batch * pages, device=device)
    return order.to(torch.int32).view(batch, pages)
