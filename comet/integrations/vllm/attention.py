# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention over the paged 4-bit KV cache: ``--attention-backend CUSTOM``.

A step appends the new tokens of the whole batch to the cache and then attends: decode straight from
4 bit, prefill by a flash kernel on 16-bit values, those of the chunk as they came and those of
earlier tokens as the cache holds them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from comet.errors import UserError
from comet.formats.kv4 import PAGE, page_bytes
from comet.integrations.vllm import fusion, hooks
from comet.integrations.vllm.prefill import ChunkGroup, attend_to_chunk, plan_prefill
from comet.kernels.kv4 import kv4_append, kv4_decode
from comet.kernels.linear import HOPPER
from comet.kernels.workspace import share_between_graphs

logger = init_logger(__name__)
# Largest part of the device that unfinished pages may take.
TAIL_SHARE = 0.1


class KV4Backend(AttentionBackend):
    """Paged INT4 KV cache, pages of 64 tokens."""

    accept_output_buffer: bool = True
    # New tokens are quantized inside forward: vLLM's own update is given no request.
    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        """vLLM looks the name up among its own; backends from outside are CUSTOM."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["KV4Attention"]:
        """The layer's attention."""
        return KV4Attention

    @staticmethod
    def get_builder_cls() -> type["KV4MetadataBuilder"]:
        """What describes a batch."""
        return KV4MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        """A page."""
        return [PAGE]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """What the kernels are built for."""
        return [64, 128]

    @classmethod
    def supports_compute_capability(cls, capability) -> bool:
        """Ampere and newer."""
        return capability.major >= 8

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """Unfinished pages are not in the pages that a connector moves."""
        return False

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """uint8 [pages, kv_heads, bytes of a page and head]."""
        assert block_size == PAGE, f"kernel pages hold {PAGE} tokens, got {block_size}"
        return num_blocks, num_kv_heads, page_bytes(head_size)

    @classmethod
    def supports_combination(cls, *args: object, **kwargs: object) -> str | None:
        """Install the hooks, or say why KV4 cannot serve under the current configuration."""
        reason = hooks.obstacle() or _unsupported(get_current_vllm_config())
        if reason is None:
            hooks.install()
        return reason


def _unsupported(config) -> str | None:
    """The first option of vLLM that KV4 does not go with."""
    if not config.use_v2_model_runner:
        return (
            "KV4 needs vLLM's second model runner, which knows the request of a row; set "
            "VLLM_USE_V2_MODEL_RUNNER=1"
        )
    if config.speculative_config is not None:
        return "KV4 does not serve with speculative decoding: rejected tokens would reopen pages"
    parallel = config.parallel_config
    contexts = parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
    if max(contexts) > 1:
        return "KV4 does not serve with context parallelism"
    return None


@dataclass
class KV4Metadata(AttentionMetadata):
    """One batch: decodes come first.

    Attributes:
        tokens, requests: without padding outside CUDA graphs.
        decodes, decode_tokens: leading rows with one token, and their tokens.
        max_query_len: largest number of new tokens of a row.
        seq_lens: int32 [requests], lengths with the new tokens; 0 for padding.
        block_table: int32 [requests, pages].
        slots: int32 [requests], tail slots.
        query_start: int32 [requests + 1].
        prefill: groups of the rows after the decodes.
    """

    tokens: int
    requests: int
    decodes: int
    decode_tokens: int
    max_query_len: int
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    prefill: tuple[ChunkGroup, ...]


class KV4MetadataBuilder(AttentionMetadataBuilder[KV4Metadata]):
    """Makes ``KV4Metadata`` without waiting for the GPU."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = (
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    )

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        self.max_requests = vllm_config.scheduler_config.max_num_seqs

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> KV4Metadata:
        """Describe one batch."""
        batch = common_attn_metadata
        decodes, prefills, decode_tokens, _ = split_decodes_and_prefills(batch, 1)
        slots = hooks.RequestSlots.on(self.device, self.max_requests).rows[: batch.num_reqs]
        groups = ()
        if prefills:
            groups = plan_prefill(
                batch.query_start_loc_cpu[decodes : batch.num_reqs + 1],
                batch.seq_lens_cpu_upper_bound[decodes : batch.num_reqs],
                self.device,
            )
        return KV4Metadata(
            batch.num_actual_tokens,
            batch.num_reqs,
            decodes,
            decode_tokens,
            batch.max_query_len,
            batch.seq_lens[: batch.num_reqs],
            batch.block_table_tensor[: batch.num_reqs],
            slots,
            batch.query_start_loc[: batch.num_reqs + 1],
            groups,
        )


class KV4Attention(AttentionImpl[KV4Metadata]):
    """The attention of one layer.

    Raises:
        ValueError: a feature that KV4 attention does not have.
        UserError: unfinished pages would take more than a tenth of the device.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        **_: object,
    ) -> None:
        refused = {
            "ALiBi": alibi_slopes,
            "a sliding window": sliding_window,
            "a soft cap": logits_soft_cap,
            "a shared KV cache": kv_sharing_target_layer_name,
        }
        for name, value in refused.items():
            if value:
                raise ValueError(f"KV4 attention does not have {name}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.tail: torch.Tensor | None = None
        self.overlap = False

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Reserve the 16-bit pages that are not full yet; they count as model memory."""
        config = get_current_vllm_config()
        requests = config.scheduler_config.max_num_seqs
        shape = (requests + 1, self.num_kv_heads, PAGE, self.head_size)
        device = torch.device(config.device_config.device)
        _check_tails(config, shape, act_dtype, device)
        self.tail = torch.zeros(shape, dtype=act_dtype, device=device)
        if device.type == "cuda":
            share_between_graphs(self.tail.device)
            hopper = torch.cuda.get_device_capability(device)[0] >= HOPPER
            self.overlap = hopper and fusion.enabled()

    def forward(
        self,
        layer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: KV4Metadata | None,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Append the batch's tokens to the cache and attend.

        Args:
            query: [tokens, heads, D].
            key, value: [tokens, kv_heads, D].
            kv_cache: uint8 [pages, kv_heads, page bytes].
            attn_metadata: None while vLLM measures memory; the cache is left alone then.
            output: [tokens, heads * D] or [tokens, heads, D], written.
        """
        if output is None:
            output = query.new_empty(query.shape)
        if attn_metadata is None:
            return output.fill_(0)
        batch, n = attn_metadata, attn_metadata.tokens
        out = output.view(-1, self.num_heads, self.head_size)
        query = query.view(-1, self.num_heads, self.head_size)[:n]
        key, value = (t.view(-1, self.num_kv_heads, self.head_size)[:n] for t in (key, value))
        state = (kv_cache, self.tail, batch.block_table, batch.seq_lens, batch.slots)
        start = None if not batch.prefill and n == batch.requests else batch.query_start
        kv4_append(key, value, *state, start, batch.max_query_len, self.overlap)
        if batch.decodes:
            rows = slice(0, batch.decodes)
            tables = (t[rows] for t in (batch.block_table, batch.seq_lens, batch.slots))
            kv4_decode(
                query[rows], kv_cache, self.tail, *tables, self.scale,
                dependent_launch=self.overlap, out=out[rows],
            )  # fmt: skip
        if batch.prefill:
            rows = slice(batch.decodes, batch.requests)
            tables = tuple(t[rows] for t in (batch.block_table, batch.seq_lens, batch.slots))
            tokens = slice(batch.decode_tokens, n)
            chunk = query[tokens], key[tokens], value[tokens]
            attend_to_chunk(
                *chunk, (kv_cache, self.tail, *tables), batch.prefill, self.scale, out[tokens]
            )
        return output


def _check_tails(config, shape: tuple, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse tails that would take the memory that KV4 is to save; say once what they take.

    Raises:
        UserError: more than a tenth of the device.
    """
    layers = config.model_config.get_num_layers(config.parallel_config)
    size = layers * torch.Size(shape).numel() * dtype.itemsize
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if size > TAIL_SHARE * total:
            fitting = int((shape[0] - 1) * TAIL_SHARE * total / size)
            raise UserError(
                f"the unfinished KV4 pages of {shape[0] - 1} requests would take "
                f"{size / 2**30:.1f} GiB, more than a tenth of the GPU; give --max-num-seqs "
                f"{fitting} or less"
            )
    logger.info_once(
        "KV4: unfinished pages of %d requests take %.2f GiB", shape[0] - 1, size / 2**30
    )
