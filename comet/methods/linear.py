# SPDX-License-Identifier: Apache-2.0
"""A fake-quantized linear layer: the one form that every method of the tables ends in.

A method changes what a linear layer reads (it divides, reorders or rotates channels, exactly undone
in the weight), rounds the weight, and rounds the input on a grid while the model runs. What is
multiplied are restored floating-point values.
"""

from dataclasses import asdict, dataclass

import torch
from torch import nn

from comet.errors import UserError
from comet.fmpq.shared_input import SharedInput


@dataclass(frozen=True)
class ActivationGrid:
    """How the input of a linear layer is rounded, dynamically.

    Attributes:
        bits: of a code; None leaves activations as they are.
        group: channels that share a scale within a token, None for the whole token.
        symmetric: codes within +-(2^(bits-1) - 1); else 0 .. 2^bits - 1 and an integer zero point.
        clip: factor of the range, 0 < clip <= 1.
        int8_channels: the last so many channels get symmetric INT8 with a scale of their own.
    """

    bits: int | None = None
    group: int | None = None
    symmetric: bool = True
    clip: float = 1.0
    int8_channels: int = 0

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """What [..., K] reads back as after rounding, same dtype."""
        if self.bits is None:
            return x
        end = x.shape[-1] - self.int8_channels
        parts = [self._group(part) for part in self._split(x[..., :end].float())]
        if self.int8_channels:
            parts.append(round_symmetric(x[..., end:].float(), 8))
        return torch.cat(parts, dim=-1).to(x.dtype)

    def _split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.split(self.group or max(1, x.shape[-1]), dim=-1)

    def _group(self, x: torch.Tensor) -> torch.Tensor:
        rounded = round_symmetric if self.symmetric else round_asymmetric
        return rounded(x, self.bits, self.clip)


def round_symmetric(x: torch.Tensor, bits: int, clip: float = 1.0) -> torch.Tensor:
    """fp32 [..., K] on a symmetric grid, one scale for each last dimension."""
    largest = 2 ** (bits - 1) - 1
    scale = _nonzero(x.abs().amax(dim=-1, keepdim=True) * clip / largest)
    return (x / scale).round().clamp(-largest, largest) * scale


def round_asymmetric(x: torch.Tensor, bits: int, clip: float = 1.0) -> torch.Tensor:
    """fp32 [..., K] on a grid with an integer zero point, one for each last dimension."""
    levels = 2**bits - 1
    low = x.amin(dim=-1, keepdim=True).clamp(max=0) * clip
    high = x.amax(dim=-1, keepdim=True).clamp(min=0) * clip
    scale = _nonzero((high - low) / levels)
    zero = (-low / scale).round()
    return ((x / scale).round() + zero).clamp(0, levels).sub(zero) * scale


def _nonzero(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, scale, torch.ones_like(scale))


class Divide(nn.Module):
    """Channels divided by a scale each; the weight's columns are multiplied by it.

    Args:
        scale: fp32 [K], positive.
    """

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale.float())

    def activations(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] as the rounded layer reads it."""
        return x / self.scale.to(x.dtype)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """fp32 [N, K] so that the layer's product stays the same."""
        return weight * self.scale


class Gather(nn.Module):
    """Channels in another order.

    Args:
        order: int64 [K], a permutation.
    """

    def __init__(self, order: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order.long())

    def activations(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] in the new order."""
        return x[..., self.order]

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """[N, K] in the new order."""
        return weight[:, self.order]


class Rotate(nn.Module):
    """Channels multiplied by the orthogonal matrix left (x) right, a Kronecker product.

    K = a * b; a left matrix of None is the identity, so that blocks of b channels are rotated
    alone. A whole rotation of many channels costs a + b multiplications a channel this way.

    Args:
        right: fp32 [b, b], orthogonal.
        left: fp32 [a, a], orthogonal, or None.
    """

    def __init__(self, right: torch.Tensor, left: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("right", right.float())
        self.register_buffer("left", None if left is None else left.float())

    def activations(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] rotated; computed in fp32."""
        return self._rotated(x.float()).to(x.dtype)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """fp32 [N, K] rotated alike: x R (W R)^T = x W^T."""
        return self._rotated(weight.float())

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        y = x.unflatten(-1, (-1, self.right.shape[0])) @ self.right
        if self.left is not None:
            y = torch.einsum("...ab,ac->...cb", y, self.left)
        return y.flatten(-2)


TRANSFORMS = {kind.__name__: kind for kind in (Divide, Gather, Rotate)}


class FakeLinear(nn.Module):
    """A linear layer on restored values.

    Args:
        weight: [N, K], rounded and restored, as it multiplies the transformed input.
        bias: [N] or None.
        grid: how the transformed input is rounded.
        transforms: applied to the input one after another.

    Attributes:
        shared: set by ``share_input`` where linears read one input and round it alike.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        grid: ActivationGrid = ActivationGrid(),
        transforms: tuple[nn.Module, ...] = (),
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.grid = grid
        self.transforms = nn.ModuleList(transforms)
        self.shared = SharedInput(readers=1)

    @property
    def in_features(self) -> int:
        """K."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """N."""
        return self.weight.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] to [..., N], same dtype."""
        return nn.functional.linear(self.shared.rounded(x, self._rounded), self.weight, self.bias)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            x = transform.activations(x)
        return self.grid.restore(x)

    def description(self) -> dict:
        """What besides tensors makes this layer, as plain JSON types."""
        return {
            "grid": asdict(self.grid),
            "bias": self.bias is not None,
            "transforms": [
                {"kind": type(transform).__name__, "tensors": sorted(transform.state_dict())}
                for transform in self.transforms
            ],
        }

    @staticmethod
    def from_description(description: dict, tensors: dict[str, torch.Tensor]) -> "FakeLinear":
        """The layer that ``description()`` and ``state_dict()`` came from.

        Raises:
            UserError: a transform of an unknown kind.
        """
        transforms = []
        for index, entry in enumerate(description["transforms"]):
            if entry["kind"] not in TRANSFORMS:
                raise UserError(
                    f"quantized linear has a transform {entry['kind']!r}, which this version of "
                    "comet does not know; quantize the model again"
                )
            arguments = {name: tensors[f"transforms.{index}.{name}"] for name in entry["tensors"]}
            transforms.append(TRANSFORMS[entry["kind"]](**arguments))
        return FakeLinear(
            tensors["weight"],
            tensors["bias"] if description["bias"] else None,
            ActivationGrid(**description["grid"]),
            tuple(transforms),
        )


def share_input(linears: list[FakeLinear]) -> None:
    """Let linears that read one input round it once, if they round it alike."""
    first = linears[0]
    for linear in linears[1:]:
        if linear.grid != first.grid or not _same_tensors(linear.transforms, first.transforms):
            return
    shared = SharedInput(len(linears))
    for linear in linears:
        linear.shared = shared


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    tensors, others = one.state_dict(), other.state_dict()
    same = [type(part) for part in one] == [type(part) for part in other]
    return (
        same
        and tensors.keys() == others.keys()
        and all(torch.equal(value, others[key]) for key, value in tensors.items())
    )


def transformed_weight(weight: torch.Tensor, transforms: tuple[nn.Module, ...]) -> torch.Tensor:
    """fp32 [N, K]: the weight that multiplies the transformed input."""
    weight = weight.float()
    for transform in transforms:
        weight = transform.weight(weight)
    return weight
