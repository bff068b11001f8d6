# SPDX-License-Identifier: Apache-2.0
"""Calls into the library's KV4 attention kernels: argument structs and workspaces."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import NamedTuple

from torch import Tensor

from comet.kernels.calls import SIZE, address, fields, launch
from comet.kernels.checks import DTYPES
from comet.kernels.library import load_for
from comet.kernels.plan_kv4 import Plan, plan_of
from comet.kernels.workspace import workspace_of

_STATE = fields(c_void_p, "cache", "tail", "block_tables", "seq_lens", "slots")


class CacheState(NamedTuple):
    """The tensors that describe a paged cache and a batch of its sequences (``kv4.kv4_append``)."""

    cache: Tensor
    tail: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    slots: Tensor

    def arguments(self) -> dict:
        """Members that the structs share."""
        return {name: address(tensor) for name, tensor in self._asdict().items()} | {
            "dtype": DTYPES.index(self.tail.dtype),
            "batch": self.seq_lens.shape[0],
            "kv_heads": self.cache.shape[1],
            "head_dim": self.tail.shape[3],
            "table_stride": self.block_tables.stride(0),
        }


class Kv4DecodeArgs(ctypes.Structure):
    """Mirror of ``CometKv4DecodeArgs`` in csrc/include/comet/kv4.h."""

    _fields_ = (
        SIZE,
        *fields(c_int32, "dtype", "batch", "kv_heads", "head_dim", "heads", "window"),
        *fields(c_int32, "warps", "stages", "blocks", "dependent_launch"),
        ("scale", c_float),
        *fields(c_int64, "table_stride", "query_stride"),
        *_STATE,
        *fields(c_void_p, "query", "out", "partials", "counters"),
    )


class Kv4AppendArgs(ctypes.Structure):
    """Mirror of ``CometKv4AppendArgs``."""

    _fields_ = (
        SIZE,
        *fields(c_int32, "dtype", "batch", "kv_heads", "head_dim", "max_new_tokens"),
        ("dependent_launch", c_int32),
        *fields(c_int64, "table_stride", "key_stride", "value_stride"),
        *_STATE,
        *fields(c_void_p, "key", "value", "query_start"),
    )


class Kv4UnpackArgs(ctypes.Structure):
    """Mirror of ``CometKv4UnpackArgs``."""

    _fields_ = (
        SIZE,
        *fields(c_int32, "dtype", "batch", "kv_heads", "head_dim", "max_pages", "tokens"),
        ("table_stride", c_int64),
        *_STATE,
        *fields(c_void_p, "starts", "key", "value"),
    )


def partial_bytes(plan: Plan, group: int, head_dim: int) -> int:
    """Workspace of a decode launch: each thread block hands on at most two parts, each of them for
    every query head of a KV head the fp32 sums of D channels, an exponent and the sum, in whole
    16 bytes."""
    return 2 * plan.blocks * (group * head_dim + (group + 1) // 2 * 4) * 4


def decode_arguments(
    query: Tensor,
    state: CacheState,
    scale: float,
    window: int | None,
    out: Tensor,
    plan: Plan,
    partials: int,
    counters: int,
    dependent_launch: bool = False,
) -> Kv4DecodeArgs:
    """The struct of a decode launch; ``partials`` and ``counters`` are addresses."""
    return Kv4DecodeArgs(
        heads=query.shape[1],
        window=window or 0,
        warps=plan.warps,
        stages=plan.stages,
        blocks=plan.blocks,
        dependent_launch=dependent_launch,
        scale=scale,
        query_stride=query.stride(0),
        query=address(query),
        out=address(out),
        partials=partials,
        counters=counters,
        **state.arguments(),
    )


def append_arguments(
    key: Tensor,
    value: Tensor,
    state: CacheState,
    query_start: Tensor | None,
    max_new_tokens: int,
    dependent_launch: bool = False,
) -> Kv4AppendArgs:
    """The struct of an append launch."""
    return Kv4AppendArgs(
        max_new_tokens=max_new_tokens,
        dependent_launch=dependent_launch,
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        key=address(key),
        value=address(value),
        query_start=address(query_start),
        **state.arguments(),
    )


def unpack_arguments(
    state: CacheState, starts: Tensor, keys: Tensor, values: Tensor
) -> Kv4UnpackArgs:
    """The struct of an unpack launch, which writes rows of ``keys`` and ``values``."""
    return Kv4UnpackArgs(
        max_pages=state.block_tables.shape[1],
        tokens=keys.shape[0],
        starts=address(starts),
        key=address(keys),
        value=address(values),
        **state.arguments(),
    )


def decode(
    query: Tensor,
    state: CacheState,
    scale: float,
    window: int | None,
    out: Tensor,
    plan: Plan | None,
    dependent_launch: bool = False,
) -> None:
    """Launch decode attention on checked CUDA tensors; writes ``out``.

    Raises:
        UserError: the library is missing, stale or not built for the device.
        RuntimeError: the launch failed.
    """
    batch, heads, dim = query.shape
    kv_heads = state.cache.shape[1]
    group, max_pages = heads // kv_heads, state.block_tables.shape[1]
    plan = plan or plan_of(batch, kv_heads, dim, max_pages, out.device, group)
    workspace = workspace_of(load_for(out.device), out.device)
    partials = workspace.sums(partial_bytes(plan, group, dim))
    counters = workspace.flags(batch * kv_heads)
    arguments = decode_arguments(
        query, state, scale, window, out, plan, partials, counters, dependent_launch
    )
    launch("comet_kv4_decode", arguments, out.device)


def append(
    key: Tensor,
    value: Tensor,
    state: CacheState,
    query_start: Tensor | None,
    max_new_tokens: int,
    dependent_launch: bool = False,
) -> None:
    """Launch the append on checked CUDA tensors; writes cache and tail; errors as ``decode``."""
    arguments = append_arguments(key, value, state, query_start, max_new_tokens, dependent_launch)
    launch("comet_kv4_append", arguments, key.device)


def unpack(state: CacheState, starts: Tensor, keys: Tensor, values: Tensor) -> None:
    """Launch the restoring to 16 bit on checked CUDA tensors; errors as ``decode``."""
    launch("comet_kv4_unpack", unpack_arguments(state, starts, keys, values), keys.device)
