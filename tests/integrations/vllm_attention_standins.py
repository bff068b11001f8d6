# SPDX-License-Identifier: Apache-2.0
"""What the KV4 backend touches of vLLM's attention, for tests without vLLM."""

import logging
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import torch

M = TypeVar("M")
BACKENDS: dict = {}


class AttentionBackend:
    pass


class AttentionMetadata:
    pass


class AttentionCGSupport(Enum):
    UNIFORM_SINGLE_TOKEN_DECODE = 1


class AttentionImpl(Generic[M]):
    pass


class AttentionMetadataBuilder(Generic[M]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold=1,
        supports_spec_as_decode=False,
        supports_dcp_with_varlen=False,
    ):
        self.reorder_batch_threshold = reorder_batch_threshold


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    seq_lens_cpu_upper_bound: torch.Tensor | None = None


def split_decodes_and_prefills(
    common_attn_metadata,
    decode_threshold=1,
    require_uniform=False,
    treat_short_extends_as_decodes=True,
):
    lengths = common_attn_metadata.query_start_loc_cpu.diff()
    decodes = int((lengths <= decode_threshold).sum())
    tokens = int(common_attn_metadata.query_start_loc_cpu[decodes])
    rest = common_attn_metadata.num_reqs - decodes
    return decodes, rest, tokens, common_attn_metadata.num_actual_tokens - tokens


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    head_size_v: int | None = None
    sliding_window: int | None = None

    @property
    def page_size_bytes(self):
        return self.real_page_size_bytes


class Attention:
    def get_kv_cache_spec(self, vllm_config):
        return self.plain_spec


class DefaultModelState:
    def prepare_attn(
        self,
        input_batch,
        cudagraph_mode,
        block_tables,
        slot_mappings,
        attn_groups,
        kv_cache_config,
        for_capture=False,
    ):
        return input_batch


class AttentionBackendEnum(Enum):
    CUSTOM = "custom"


def register_backend(backend, class_path=None, is_mamba=False):
    BACKENDS[backend] = class_path


def init_logger(name):
    logger = logging.getLogger(name)
    logger.info_once, logger.warning_once = logger.info, logger.warning
    return logger


BACKEND = "vllm.v1.attention.backend"
STATES = "vllm.v1.worker.gpu.model_states"
MODULES = {
    "vllm.logger": {"init_logger": init_logger},
    "vllm.v1": {},
    "vllm.v1.attention": {},
    BACKEND: {
        kind.__name__: kind
        for kind in (
            AttentionBackend,
            AttentionMetadata,
            AttentionCGSupport,
            AttentionImpl,
            AttentionMetadataBuilder,
            CommonAttentionMetadata,
        )
    },
    f"{BACKEND}s": {},
    f"{BACKEND}s.utils": {"split_decodes_and_prefills": split_decodes_and_prefills},
    f"{BACKEND}s.registry": {
        "AttentionBackendEnum": AttentionBackendEnum,
        "register_backend": register_backend,
    },
    "vllm.model_executor.layers.attention": {"Attention": Attention},
    "vllm.v1.kv_cache_interface": {"FullAttentionSpec": FullAttentionSpec},
    "vllm.v1.worker": {},
    "vllm.v1.worker.gpu": {},
    STATES: {},
    f"{STATES}.default": {"DefaultModelState": DefaultModelState},
}
