# SPDX-License-Identifier: Apache-2.0
"""Checks of quantization arguments, and the call into the library's quantization kernels."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from comet.errors import UserError
from comet.formats.activations import MODES
from comet.formats.blocks import BLOCK
from comet.kernels import calls
from comet.kernels.calls import SIZE, address, fields
from comet.kernels.checks import DTYPES, check_dtype, check_like, check_tensor
from comet.kernels.operands import LAYOUTS, ActivationOperand, padded_tokens

MAX_CHANNELS = 49152
MAX_CHANNELS_SILU = 32768
MAX_CHANNELS_NORM = 16384


class Quantization(NamedTuple):
    """How an operator quantizes: its arguments after the tensors, in their order."""

    permutation: Tensor | None
    int4_blocks: int
    int8_blocks: int
    mode: str
    zero_point: bool
    hadamard: bool
    layout: str
    dependent_launch: bool


class QuantizeArgs(ctypes.Structure):
    """Mirror of ``CometQuantizeArgs`` in csrc/include/comet/activations.h."""

    _fields_ = (
        SIZE,
        *fields(c_int32, "dtype", "tokens", "channels", "int4_blocks", "int8_blocks", "mode"),
        *fields(c_int32, "layout", "zero_point", "hadamard", "dependent_launch"),
        *fields(c_float, "epsilon"),
        *fields(c_int64, "x_stride", "second_stride"),
        *fields(c_void_p, "x", "second", "weight", "sum_out", "permutation"),
        *fields(c_void_p, "operand", "scales", "sums", "multiples"),
    )


def empty_operand(x: Tensor, how: Quantization) -> ActivationOperand:
    """Uninitialised outputs for the tokens of x."""
    tokens, int4_blocks, int8_blocks = x.shape[0], how.int4_blocks, how.int8_blocks
    blocks = int4_blocks + int8_blocks
    shapes = {
        "rows": (tokens, blocks * BLOCK),
        "sm90": (blocks, padded_tokens(tokens), BLOCK),
        "sm80": (tokens, int4_blocks * BLOCK // 2 + int8_blocks * BLOCK),
    }
    vectors = blocks if how.mode == "token_block" else 2
    return ActivationOperand(
        x.new_empty(shapes[how.layout], dtype=torch.uint8 if how.layout == "sm80" else torch.int8),
        x.new_empty((vectors, tokens), dtype=torch.float32),
        x.new_empty((vectors, tokens), dtype=torch.int32),
        x.new_empty(0 if how.layout == "sm90" else (tokens, int4_blocks), dtype=torch.uint8),
    )


def launch(
    name: str,
    x: Tensor,
    how: Quantization,
    second: Tensor | None = None,
    weight: Tensor | None = None,
    epsilon: float = 0.0,
    sum_out: Tensor | None = None,
) -> ActivationOperand:
    """Call the launcher ``name`` on checked CUDA tensors; returns the operand being written.

    Raises:
        UserError: the library is missing, stale or not built for the device.
        RuntimeError: the launch failed.
    """
    out = empty_operand(x, how)
    if x.shape[0] == 0:
        return out
    arguments = QuantizeArgs(
        dtype=DTYPES.index(x.dtype),
        tokens=x.shape[0],
        channels=x.shape[1],
        int4_blocks=how.int4_blocks,
        int8_blocks=how.int8_blocks,
        mode=MODES.index(how.mode),
        layout=LAYOUTS.index(how.layout),
        zero_point=how.zero_point,
        hadamard=how.hadamard,
        dependent_launch=how.dependent_launch,
        epsilon=epsilon,
        x_stride=x.stride(0),
        second_stride=0 if second is None else second.stride(0),
        x=address(x),
        second=address(second),
        weight=address(weight),
        sum_out=address(sum_out),
        permutation=address(how.permutation),
        operand=address(out.operand),
        scales=address(out.scales),
        sums=address(out.sums),
        multiples=None if how.layout == "sm90" else address(out.multiples),
    )
    calls.launch(name, arguments, x.device)
    return out


def check_weight(x: Tensor, weight: Tensor) -> None:
    """Check an RMSNorm weight against the activations x [M, K]."""
    check_tensor("weight", weight, x.dtype, x.shape[1:], x.device)


def check(
    x: Tensor,
    how: Quantization,
    others: dict[str, Tensor | None] | None = None,
    limit: int = MAX_CHANNELS,
) -> None:
    """Check what an operator is given.

    Args:
        x: activations [M, K].
        how: the other arguments.
        others: tensors that must be like x, by argument name; None is skipped.
        limit: largest K.

    Raises:
        UserError: names the argument, its limit and its value.
    """
    _check_matrices(x, others or {}, limit)
    blocks, needed = how.int4_blocks + how.int8_blocks, -(-x.shape[1] // BLOCK)
    if min(how.int4_blocks, how.int8_blocks) < 0 or blocks != needed:
        raise UserError(
            f"int4_blocks + int8_blocks is {how.int4_blocks} + {how.int8_blocks}; {x.shape[1]} "
            f"channels need {needed} blocks of {BLOCK}"
        )
    if how.mode not in MODES:
        raise UserError(f"mode is {how.mode!r}; it must be one of {', '.join(MODES)}")
    if how.layout not in LAYOUTS:
        raise UserError(f"layout is {how.layout!r}; it must be one of {', '.join(LAYOUTS)}")
    if how.layout == "sm80" and how.zero_point:
        raise UserError("zero_point is true; layout sm80 holds symmetric 4-bit codes only")
    if how.permutation is not None:
        check_tensor("permutation", how.permutation, torch.int32, (blocks * BLOCK,), x.device)


def _check_matrices(x: Tensor, others: dict[str, Tensor | None], limit: int) -> None:
    if x.dim() != 2:
        raise UserError(f"x has {x.dim()} dimensions; it must have 2, [tokens, channels]")
    check_dtype("x has dtype", x.dtype)
    if not 0 < x.shape[1] <= limit:
        raise UserError(f"x has {x.shape[1]} channels; the limit is 1 to {limit}")
    for name, tensor in {"x": x, **others}.items():
        if tensor is None:
            continue
        check_like(name, tensor, x.dtype, x.shape, x.device)
        if tensor.stride(1) != 1:
            raise UserError(f"{name} has channel stride {tensor.stride(1)}; it must be 1")
