# SPDX-License-Identifier: Apache-2.0
"""Activation quantization as torch operators, fused with what precedes a linear layer.

Each operator gathers channels by the layer's permutation, quantizes by the pinned arithmetic of
``comet.formats.activations`` and writes the operand that a GEMM kernel reads. CUDA tensors go to
the library, CPU tensors to the reference; both give the same bits for the same 16-bit values.
"""

import torch
from torch import Tensor

from comet.formats import activations as reference
from comet.formats.blocks import BlockLayout
from comet.kernels.operands import ActivationOperand, operand_of
from comet.kernels.quantization_call import (
    MAX_CHANNELS_NORM,
    MAX_CHANNELS_SILU,
    Quantization,
    check,
    check_weight,
    empty_operand,
    launch,
)


@torch.library.custom_op("comet::quantize_activations", mutates_args=())
def _quantize(
    x: Tensor,
    permutation: Tensor | None,
    int4_blocks: int,
    int8_blocks: int,
    mode: str,
    zero_point: bool,
    hadamard: bool,
    layout: str,
    dependent_launch: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    how = Quantization(
        permutation, int4_blocks, int8_blocks, mode, zero_point, hadamard, layout, dependent_launch
    )
    check(x, how)
    return tuple(_on_cpu(x, how) if x.is_cpu else launch("comet_quantize", x, how))


@_quantize.register_fake
def _(x: Tensor, *how) -> tuple[Tensor, ...]:
    check(x, Quantization(*how))
    return tuple(empty_operand(x, Quantization(*how)))


@torch.library.custom_op("comet::rmsnorm_quantize", mutates_args=())
def _rmsnorm_quantize(
    x: Tensor,
    weight: Tensor,
    epsilon: float,
    residual: Tensor | None,
    permutation: Tensor | None,
    int4_blocks: int,
    int8_blocks: int,
    mode: str,
    zero_point: bool,
    hadamard: bool,
    layout: str,
    dependent_launch: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    how = Quantization(
        permutation, int4_blocks, int8_blocks, mode, zero_point, hadamard, layout, dependent_launch
    )
    total = _checked_total(x, weight, residual, how)
    if x.is_cpu:
        if residual is not None:
            x = torch.add(x, residual, out=total)
        variance = x.float().pow(2).mean(1, keepdim=True)
        normed = (x.float() * torch.rsqrt(variance + epsilon)).to(x.dtype) * weight
        return (*_on_cpu(normed, how), total)
    sum_out = None if residual is None else total
    name = "comet_rmsnorm_quantize"
    return (*launch(name, x, how, residual, weight, epsilon, sum_out), total)


@_rmsnorm_quantize.register_fake
def _(x: Tensor, weight: Tensor, _epsilon: float, residual: Tensor | None, *how):
    total = _checked_total(x, weight, residual, Quantization(*how))
    return (*empty_operand(x, Quantization(*how)), total)


@torch.library.custom_op("comet::silu_quantize", mutates_args=())
def _silu_quantize(
    gate: Tensor,
    up: Tensor,
    permutation: Tensor | None,
    int4_blocks: int,
    int8_blocks: int,
    mode: str,
    zero_point: bool,
    hadamard: bool,
    layout: str,
    dependent_launch: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    how = Quantization(
        permutation, int4_blocks, int8_blocks, mode, zero_point, hadamard, layout, dependent_launch
    )
    check(gate, how, {"up": up}, MAX_CHANNELS_SILU)
    if gate.is_cpu:
        return tuple(_on_cpu(torch.nn.functional.silu(gate) * up, how))
    return tuple(launch("comet_silu_quantize", gate, how, up))


@_silu_quantize.register_fake
def _(gate: Tensor, up: Tensor, *how) -> tuple[Tensor, ...]:
    check(gate, Quantization(*how), {"up": up}, MAX_CHANNELS_SILU)
    return tuple(empty_operand(gate, Quantization(*how)))


def _checked_total(x: Tensor, weight: Tensor, residual: Tensor | None, how: Quantization) -> Tensor:
    """Check the arguments of RMSNorm; room for x + residual, empty without a residual."""
    check(x, how, {"residual": residual}, MAX_CHANNELS_NORM)
    check_weight(x, weight)
    return x.new_empty(0 if residual is None else x.shape)


def _on_cpu(x: Tensor, how: Quantization) -> ActivationOperand:
    if x.shape[0] == 0:
        return empty_operand(x, how)
    blocks = BlockLayout(x.shape[1], how.int4_blocks, how.int8_blocks)
    if how.permutation is None:
        x = torch.nn.functional.pad(x, (0, blocks.padded - x.shape[1]))
    options = (how.permutation, how.mode, how.zero_point, how.hadamard)
    return operand_of(reference.quantize_activations(x, blocks, *options), how.layout)


def quantize_activations(
    x: Tensor,
    blocks: BlockLayout,
    permutation: Tensor | None = None,
    mode: str = "token_block_multiple",
    zero_point: bool = False,
    hadamard: bool = False,
    layout: str = "sm90",
    dependent_launch: bool = False,
) -> ActivationOperand:
    """Permute and quantize activations for a GEMM kernel.

    Args:
        x: fp16 or bf16 [M, K], rows contiguous; its rows may be strided.
        blocks: block layout of K, at most 32,768 channels.
        permutation: int32 [K padded], channel of each position or -1; None for natural order.
        mode: one of ``comet.formats.activations.MODES``.
        zero_point: INT4 blocks get an integer zero point; not with layout ``sm80``.
        hadamard: INT4 blocks are rotated by a 128-point Hadamard first.
        layout: one of ``comet.kernels.operands.LAYOUTS``.
        dependent_launch: on sm_90, start before the stream's previous kernel has ended and wait
            for it inside (programmatic dependent launch).

    Raises:
        UserError: an argument is outside its limit; the message names argument, limit and value.
    """
    fixed = (blocks.int4_blocks, blocks.int8_blocks, mode, zero_point, hadamard, layout)
    return ActivationOperand(*_quantize(x, permutation, *fixed, dependent_launch))


def rmsnorm_quantize(
    x: Tensor,
    weight: Tensor,
    epsilon: float,
    blocks: BlockLayout,
    residual: Tensor | None = None,
    permutation: Tensor | None = None,
    mode: str = "token_block_multiple",
    zero_point: bool = False,
    hadamard: bool = False,
    layout: str = "sm90",
    dependent_launch: bool = False,
) -> tuple[ActivationOperand, Tensor | None]:
    """Add the residual, normalise, permute and quantize: h = x + residual, h / rms(h) * weight.

    Values are rounded to x's dtype after the addition, the normalisation and the product, as
    separate operators do. K is at most 16,384; other arguments as ``quantize_activations``.

    Args:
        x: [M, K].
        weight: [K], dtype of x.
        epsilon: added to the mean square.
        blocks: block layout of K.
        residual: [M, K], dtype of x; None adds nothing.

    Returns:
        The operand, and h [M, K] where a residual was given.
    """
    fixed = (blocks.int4_blocks, blocks.int8_blocks, mode, zero_point, hadamard, layout)
    *operand, total = _rmsnorm_quantize(
        x, weight, epsilon, residual, permutation, *fixed, dependent_launch
    )
    return ActivationOperand(*operand), None if residual is None else total


def silu_quantize(
    gate: Tensor,
    up: Tensor,
    blocks: BlockLayout,
    permutation: Tensor | None = None,
    mode: str = "token_block_multiple",
    zero_point: bool = False,
    hadamard: bool = False,
    layout: str = "sm90",
    dependent_launch: bool = False,
) -> ActivationOperand:
    """Quantize silu(gate) * up, both [M, K] (halves of one tensor may be passed as views).

    Silu and the product are rounded to the dtype of the inputs, as separate operators do. Other
    arguments as ``quantize_activations``.
    """
    fixed = (blocks.int4_blocks, blocks.int8_blocks, mode, zero_point, hadamard, layout)
    return ActivationOperand(*_silu_quantize(gate, up, permutation, *fixed, dependent_launch))
