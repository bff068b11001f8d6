# SPDX-License-Identifier: Apache-2.0
"""INT4 weights in groups of 128 input channels that coincide with the activation blocks."""

from dataclasses import dataclass, replace

import torch

from comet.errors import UserError
from comet.formats.blocks import BLOCK, BlockLayout, check_permutation
from comet.formats.packing import pack_int4, unpack_int4

SCALE_KINDS = ("group_int", "group_fp")
MAX_GROUP_SCALE = 17
INT32_LIMIT = 2**31


@dataclass(frozen=True)
class PackedWeight:
    """The W4 weight of one linear layer, in permuted channel order.

    ``group_int`` (default): ``w = channel_scale[n] * s * (u - z)`` with the integer s in 1..17 of
    the channel and group; ``s * (u - z)`` stays within -128..127 for every stored code.
    ``group_fp`` (as the paper's figures read): ``w = group_scale[n, g] * (u - z)`` in fp16.

    Attributes:
        layout: block layout of K; its blocks are the weight groups.
        permutation: int32 [K padded], natural channel of each position, -1 for padding.
        codes: uint8 [N, K padded / 2], two codes u in 0..15 a byte, even channel low.
        group_scale: uint8 [N, B] (``group_int``) or fp16 [N, B] (``group_fp``).
        group_zero: uint8 [N, B], integer zero point z in 0..15 (8 when symmetric).
        channel_scale: fp32 [N]; ones for ``group_fp``.
        scale_kind: ``group_int`` or ``group_fp``.
        hadamard: weights of INT4 blocks are rotated by the 128-point Hadamard.
    """

    layout: BlockLayout
    permutation: torch.Tensor
    codes: torch.Tensor
    group_scale: torch.Tensor
    group_zero: torch.Tensor
    channel_scale: torch.Tensor
    scale_kind: str = "group_int"
    hadamard: bool = False

    @property
    def out_features(self) -> int:
        """N, output channels."""
        return self.codes.shape[0]

    def integers(self) -> torch.Tensor:
        """int16 [N, K padded]: q = s * (u - z) for ``group_int``, u - z for ``group_fp``."""
        codes = unpack_int4(self.codes).view(self.out_features, -1, BLOCK).to(torch.int16)
        q = codes - self.group_zero[..., None].to(torch.int16)
        if self.scale_kind == "group_int":
            q = q * self.group_scale[..., None].to(torch.int16)
        return q.flatten(1)

    def scales(self) -> torch.Tensor:
        """fp32 [N, B]: what multiplies ``integers`` of each group."""
        if self.scale_kind == "group_fp":
            return self.group_scale.float()
        return self.channel_scale[:, None].expand(-1, self.layout.blocks)

    def dequantize(self) -> torch.Tensor:
        """fp32 [N, K padded] in permuted order."""
        groups = self.integers().float().view(self.out_features, -1, BLOCK)
        return (groups * self.scales()[..., None]).flatten(1)

    def to(self, device: torch.device | str) -> "PackedWeight":
        """The same weight on another device."""
        moved = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)

    def check(self) -> None:
        """Check shapes, ranges and that int32 accumulation cannot overflow.

        Raises:
            UserError: a field does not fit the contract; the message names it.
        """
        n, blocks = self.out_features, self.layout.blocks
        check_permutation(self.permutation, self.layout)
        expected = {
            "codes": (n, self.layout.padded // 2),
            "group_scale": (n, blocks),
            "group_zero": (n, blocks),
            "channel_scale": (n,),
        }
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                raise UserError(
                    f"weight field {name} has shape {tuple(getattr(self, name).shape)}, "
                    f"expected {shape}"
                )
        if self.scale_kind not in SCALE_KINDS:
            raise UserError(f"weight scale kind {self.scale_kind!r} is not one of {SCALE_KINDS}")
        if int(self.group_zero.max()) > 15:
            raise UserError("weight field group_zero exceeds 15")
        if self.scale_kind == "group_int":
            self._check_group_int()

    def _check_group_int(self) -> None:
        low, high = int(self.group_scale.min()), int(self.group_scale.max())
        if low < 1 or high > MAX_GROUP_SCALE:
            raise UserError(f"weight field group_scale spans {low}..{high}, allowed 1..17")
        q = self.integers()
        if int(q.min()) < -128 or int(q.max()) > 127:
            raise UserError("weight integers leave -128..127; quantize the layer again")
        if worst_case_sum(self.layout, int(q.abs().max())) >= INT32_LIMIT:
            raise UserError(f"{self.layout.channels} input channels could overflow int32 sums")


def worst_case_sum(layout: BlockLayout, largest_q: int = 128) -> int:
    """Largest |sum| of one accumulator: K padded * 127 (or 18 * 7 = 126) * max|q|."""
    return max(layout.int4_blocks * 126, layout.int8_blocks * 127) * BLOCK * largest_q


def pack_weight(
    layout: BlockLayout,
    permutation: torch.Tensor,
    codes: torch.Tensor,
    group_scale: torch.Tensor,
    group_zero: torch.Tensor,
    channel_scale: torch.Tensor | None = None,
    scale_kind: str = "group_int",
    hadamard: bool = False,
) -> PackedWeight:
    """Pack integer codes [N, K padded] (0..15) and their scales; checks the result."""
    if channel_scale is None:
        channel_scale = torch.ones(codes.shape[0], dtype=torch.float32)
    packed = PackedWeight(
        layout,
        permutation.to(torch.int32),
        pack_int4(codes),
        group_scale,
        group_zero.to(torch.uint8),
        channel_scale.float(),
        scale_kind,
        hadamard,
    )
    packed.check()
    return packed
