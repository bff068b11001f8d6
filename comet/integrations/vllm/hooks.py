# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.24 has no hook for, wrapped in one place.

* The page size of a layer's KV cache: ``Attention.get_kv_cache_spec`` gives the 16-bit one.
* Which request a row of a batch belongs to: the tail of an unfinished page is kept by request, and
  only ``DefaultModelState.prepare_attn`` knows the request's index, which is stable from admission
  to finish or preemption.

Both are private: their signatures are compared before they are wrapped, and a vLLM that has other
ones is refused in one line.
"""

import inspect
from dataclasses import dataclass

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from comet.formats.kv4 import PAGE, page_bytes

SPEC_ARGUMENTS = ["self", "vllm_config"]
PREPARE_ARGUMENTS = [
    "self",
    "input_batch",
    "cudagraph_mode",
    "block_tables",
    "slot_mappings",
    "attn_groups",
    "kv_cache_config",
    "for_capture",
]
# Rows by which a captured batch may exceed the number of requests.
PADDING_ROWS = 512
_WRAPPED = "comet_wrapped"


@dataclass(frozen=True, kw_only=True)
class KV4Spec(FullAttentionSpec):
    """A layer's KV cache in 4 bit. No fields of its own: vLLM rebuilds specs from a fixed list."""

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of one page of ``block_size`` tokens, over all KV heads."""
        return self.block_size // PAGE * self.num_kv_heads * page_bytes(self.head_size)


class RequestSlots:
    """The tail slot of each row of the coming batch, int32 at a fixed address.

    Args:
        max_requests: requests that may run at a time; the slot of that number takes what padding
            rows would write.
        device: of the buffer.
    """

    _of_device: dict[torch.device, "RequestSlots"] = {}

    def __init__(self, max_requests: int, device: torch.device) -> None:
        self.unused = max_requests
        self.rows = torch.full(
            (max_requests + PADDING_ROWS,), self.unused, dtype=torch.int32, device=device
        )

    @classmethod
    def on(cls, device: torch.device | str, max_requests: int) -> "RequestSlots":
        """The buffer of a device, made on first use."""
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        slots = cls._of_device.get(device)
        if slots is None or slots.unused != max_requests:
            slots = cls._of_device[device] = cls(max_requests, device)
        return slots

    def fill(self, request_index: torch.Tensor, requests: int) -> None:
        """Set the slots of a batch: its requests' indexes, then padding."""
        self.rows[:requests].copy_(request_index[:requests])
        self.rows[requests:].fill_(self.unused)


def obstacle() -> str | None:
    """Why this vLLM cannot be wrapped, or None."""
    for function, wanted in (
        (Attention.get_kv_cache_spec, SPEC_ARGUMENTS),
        (DefaultModelState.prepare_attn, PREPARE_ARGUMENTS),
    ):
        found = list(inspect.signature(function).parameters)
        if found != wanted:
            return (
                f"the KV4 backend is written for vLLM 0.24, whose {function.__qualname__} takes "
                f"{', '.join(wanted)}; this one takes {', '.join(found)}"
            )
    return None


def install() -> None:
    """Wrap both functions; safe to call again."""
    if not hasattr(Attention.get_kv_cache_spec, _WRAPPED):
        Attention.get_kv_cache_spec = _with_kv4_pages(Attention.get_kv_cache_spec)
    if not hasattr(DefaultModelState.prepare_attn, _WRAPPED):
        DefaultModelState.prepare_attn = _with_request_slots(DefaultModelState.prepare_attn)


def _with_kv4_pages(original):
    def get_kv_cache_spec(self, vllm_config):
        spec = original(self, vllm_config)
        if self.attn_backend.get_name() != "CUSTOM" or spec is None:
            return spec
        if type(spec) is not FullAttentionSpec or spec.sliding_window is not None:
            raise ValueError(
                f"{self.layer_name} has a sliding window; the KV4 backend serves models without "
                "one. Leave out --attention-backend CUSTOM to serve with W4Ax alone"
            )
        if spec.block_size % PAGE:
            raise ValueError(f"--block-size is {spec.block_size}; KV4 pages need a multiple of 64")
        return KV4Spec(
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            head_size_v=spec.head_size_v,
            dtype=torch.uint8,
        )

    setattr(get_kv_cache_spec, _WRAPPED, True)
    get_kv_cache_spec.__signature__ = inspect.signature(original)
    return get_kv_cache_spec


def _with_request_slots(original):
    def prepare_attn(self, input_batch, *args, **kwargs):
        slots = RequestSlots.on(self.device, self.max_num_reqs)
        slots.fill(input_batch.idx_mapping, input_batch.num_reqs)
        return original(self, input_batch, *args, **kwargs)

    setattr(prepare_attn, _WRAPPED, True)
    prepare_attn.__signature__ = inspect.signature(original)
    return prepare_attn
