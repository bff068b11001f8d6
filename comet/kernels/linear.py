# SPDX-License-Identifier: Apache-2.0
"""A whole quantized linear layer, activation quantization and GEMM, on the kernel of the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from comet.errors import UserError
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.weights import PackedWeight
from comet.kernels.activations import quantize_activations, rmsnorm_quantize, silu_quantize
from comet.kernels.operands import ActivationOperand
from comet.kernels.w4ax import PreparedWeight, prepare_weight, w4ax_linear
from comet.kernels.w4ax_block_scaled import (
    BlockScaledWeight,
    prepare_block_scaled,
    w4ax_linear_block_scaled,
)
from comet.kernels.w4ax_sm80 import PreparedWeightSm80, prepare_weight_sm80, w4ax_linear_sm80

HOPPER = 9
AMPERE = 8


@dataclass(frozen=True)
class LinearKernel:
    """Which kernel a linear layer runs on, and how its input is quantized.

    Attributes:
        blocks: block layout of K.
        mode: activation scale mode.
        zero_point: zero point on INT4 blocks.
        hadamard: INT4 blocks are rotated.
        kernel: ``sm90``, ``sm80``, or ``sm90_block_scaled`` for scales of each block.
        dependent_launch: on sm_90, kernels start before the stream's previous one has ended, which
            then must not write the weight (programmatic dependent launch).
    """

    blocks: BlockLayout
    mode: str
    zero_point: bool
    hadamard: bool
    kernel: str
    dependent_launch: bool = False

    def prepare(self, weight: PackedWeight, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """(tiles, scales) of a weight as the kernel reads them, on ``device``.

        Raises:
            UserError: N or K is outside the kernel's limits.
        """
        if self.kernel == "sm90_block_scaled":
            scaled = prepare_block_scaled(weight, device)
            return scaled.tiles, scaled.scales
        prepare = prepare_weight if self.kernel == "sm90" else prepare_weight_sm80
        prepared = prepare(weight, device)
        return prepared.tiles, prepared.channel_scale

    def __call__(
        self,
        x: Tensor,
        tiles: Tensor,
        scales: Tensor,
        permutation: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Y = X W^T + bias.

        Args:
            x: [M, K], fp16 or bf16.
            tiles, scales: of ``prepare``.
            permutation: int32 [K padded], None where channels are in order already.
            bias: fp32 [N] or None.

        Returns:
            [M, N] in the type of ``x``.
        """
        operand = self.quantize(x, permutation)
        return self.multiply(operand, tiles, scales, bias, x.dtype)

    def quantize(self, x: Tensor, permutation: Tensor | None = None) -> ActivationOperand:
        """The operand of ``multiply`` for x [M, K]."""
        return quantize_activations(x, self.blocks, permutation, **self._how())

    def quantize_normed(
        self,
        x: Tensor,
        weight: Tensor,
        epsilon: float,
        residual: Tensor | None = None,
        permutation: Tensor | None = None,
    ) -> tuple[ActivationOperand, Tensor | None]:
        """The operand for RMSNorm(x + residual), and that sum (``rmsnorm_quantize``)."""
        return rmsnorm_quantize(
            x, weight, epsilon, self.blocks, residual, permutation, **self._how()
        )

    def quantize_gated(
        self, gate: Tensor, up: Tensor, permutation: Tensor | None = None
    ) -> ActivationOperand:
        """The operand for silu(gate) * up, both [M, K] (``silu_quantize``)."""
        return silu_quantize(gate, up, self.blocks, permutation, **self._how())

    def multiply(
        self,
        operand: ActivationOperand,
        tiles: Tensor,
        scales: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Y = X W^T + bias of ``dtype``, X as one of the above quantized it."""
        if self.kernel == "sm80":
            weight = PreparedWeightSm80(self.blocks, tiles, scales)
            return w4ax_linear_sm80(operand, weight, bias, dtype)
        kind, linear = (
            (PreparedWeight, w4ax_linear)
            if self.kernel == "sm90"
            else (BlockScaledWeight, w4ax_linear_block_scaled)
        )
        weight = kind(self.blocks, tiles, scales)
        return linear(operand, weight, bias, dtype, self.dependent_launch)

    def _how(self) -> dict:
        layout = self.kernel.partition("_")[0]
        return {
            "mode": self.mode,
            "zero_point": self.zero_point,
            "hadamard": self.hadamard,
            "layout": layout,
            "dependent_launch": self.dependent_launch and layout == "sm90",
        }


def in_natural_order(weight: PackedWeight) -> bool:
    """The channels of the input need no gather and no padding."""
    natural = natural_permutation(weight.layout)
    whole = weight.layout.padded == weight.layout.channels
    return whole and torch.equal(weight.permutation.cpu(), natural)


def linear_kernel(
    blocks: BlockLayout,
    scale_kind: str,
    mode: str,
    zero_point: bool = False,
    hadamard: bool = False,
    device: torch.device | str = "cuda",
) -> LinearKernel:
    """The kernel for a weight and a device; a CPU takes the Hopper operators' reference.

    Raises:
        UserError: the device has no kernel for these scales.
    """
    device = torch.device(device)
    hopper = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == HOPPER
    name = "sm90" if hopper else "sm80"
    if mode == "token_block" or scale_kind == "group_fp":
        if not hopper:
            raise UserError(
                f"{torch.cuda.get_device_name(device)} has no kernel for act_scale {mode!r} with "
                f"weight_scale {scale_kind!r}; quantize with token_block_multiple and group_int"
            )
        # Weights with a scale of each group are multiplied block by block in every mode.
        name, mode = "sm90_block_scaled", "token_block"
    if name == "sm80" and zero_point:
        raise UserError(
            "the Ampere kernel takes symmetric INT4 activations; quantize without act_zero_point"
        )
    if not hopper and torch.cuda.get_device_capability(device)[0] < AMPERE:
        raise UserError(
            f"{torch.cuda.get_device_name(device)} is older than Ampere; W4Ax kernels need one of "
            "compute capability 8.0 or newer"
        )
    return LinearKernel(blocks, mode, zero_point, hadamard, name)
