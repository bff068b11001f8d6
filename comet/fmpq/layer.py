# SPDX-License-Identifier: Apache-2.0
"""A linear layer on FMPQ weights, computed by fake quantization or by exact integers."""

import torch
from torch import nn

from comet.fmpq.shared_input import SharedInput
from comet.formats.activations import ordered_activations, quantize_activations
from comet.formats.blocks import natural_permutation
from comet.formats.weights import PackedWeight
from comet.kernels.reference import w4ax_linear_reference

PATHS = ("fake", "integer")


class W4AxLinear(nn.Module):
    """``nn.Linear`` with INT4 weights and INT4/INT8 (or 16-bit) activations.

    Args:
        weight: packed weight, N x K.
        bias: [N] or None.
        act_scale: activation scale mode, or None for activations that are not quantized.
        act_zero_point: zero point on INT4 blocks.
        path: ``fake`` multiplies restored floating-point values, ``integer`` runs the exact
            integer reference of the kernel.

    Attributes:
        shared: set by ``load_checkpoint_model`` where linears read one input in one order.
    """

    def __init__(
        self,
        weight: PackedWeight,
        bias: torch.Tensor | None = None,
        act_scale: str | None = "token_block_multiple",
        act_zero_point: bool = False,
        path: str = "fake",
    ) -> None:
        super().__init__()
        if path not in PATHS:
            raise ValueError(f"path is {path!r}, not one of {PATHS}")
        self.packed = weight
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.act_scale = act_scale
        self.act_zero_point = act_zero_point
        self.path = path
        natural = natural_permutation(weight.layout)
        self.in_natural_order = torch.equal(weight.permutation.cpu(), natural)
        self.restored: torch.Tensor | None = None
        self.shared = SharedInput(readers=1)

    @property
    def in_features(self) -> int:
        """K."""
        return self.packed.layout.channels

    @property
    def out_features(self) -> int:
        """N."""
        return self.packed.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] to [..., N], same dtype."""
        integer = self.path == "integer" and self.act_scale
        y = self._integer(x.reshape(-1, x.shape[-1])) if integer else self._fake(x)
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _quantize(self, x: torch.Tensor):
        weight = self.packed
        return quantize_activations(
            x,
            weight.layout,
            weight.permutation,
            self.act_scale,
            self.act_zero_point,
            weight.hadamard,
        )

    def _integer(self, x: torch.Tensor) -> torch.Tensor:
        return w4ax_linear_reference(self._quantize(x), self.packed, self.bias)

    def _fake(self, x: torch.Tensor) -> torch.Tensor:
        if self.restored is None:
            self.restored = self.packed.dequantize()
        values = self.shared.rounded(x, self._rounded)
        return nn.functional.linear(
            values, self.restored, None if self.bias is None else self.bias.float()
        )

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return self._quantize(flat).dequantize() if self.act_scale else self._ordered(flat.float())

    def _ordered(self, x: torch.Tensor) -> torch.Tensor:
        """Activations as the weights expect them, without quantization."""
        layout = self.packed.layout
        if self.in_natural_order and layout.padded == layout.channels and not self.packed.hadamard:
            return x
        return ordered_activations(x, layout, self.packed.permutation, self.packed.hadamard)
