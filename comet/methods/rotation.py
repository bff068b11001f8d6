# SPDX-License-Identifier: Apache-2.0
"""Hadamard matrices of the sizes that models have, and rotation without anything else.

A Hadamard matrix has entries +-1 and orthogonal rows. Sylvester's construction doubles one; where
a size is no power of two, Paley's two constructions (Paley, "On orthogonal matrices", 1933) give
the odd part: of order q + 1 from the squares of a field of q = 3 mod 4 elements, of order 2 (q + 1)
where q = 1 mod 4. ``Hadamard`` is the control of the tables: every linear input is rotated whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch import nn

from comet.errors import UserError
from comet.methods.linear import (
    ActivationGrid,
    Divide,
    FakeLinear,
    Rotate,
    transformed_weight,
)
from comet.methods.method import Block, LayerInput, Method
from comet.methods.weight_grid import WeightGrid
from comet.models.families import Family

SYLVESTER = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
SYLVESTER_ROWS = 128


@cache
def hadamard_factors(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two Hadamard matrices whose Kronecker product has ``size`` rows; b is at most 128.

    Returns:
        fp32 [a, a] and [b, b], entries +-1, a * b = size.

    Raises:
        UserError: neither construction gives one.
    """
    odd = size // (size & -size)
    order = odd
    while size % order == 0:
        if (left := _paley(order)) is not None:
            right = min(size // order, SYLVESTER_ROWS)
            return torch.kron(left, _sylvester(size // order // right)), _sylvester(right)
        order *= 2
    raise UserError(f"no Hadamard matrix of {size} rows is known here; rotate blocks of it instead")


def whole_rotation(size: int, device: torch.device | str = "cpu") -> Rotate:
    """Rotation of ``size`` channels by an orthonormal Hadamard matrix."""
    left, right = hadamard_factors(size)
    left = left * left.shape[0] ** -0.5 if len(left) > 1 else None
    return Rotate(right * right.shape[0] ** -0.5, left).to(device)


def block_rotation(size: int, device: torch.device | str = "cpu") -> Rotate:
    """Rotation of each ``size`` channels alone by an orthonormal Hadamard matrix."""
    left, right = hadamard_factors(size)
    return Rotate(torch.kron(left, right) * size**-0.5).to(device)


def unscaled(norm: nn.Module) -> tuple[nn.Module, ...]:
    """Undo the scale of an RMSNorm, which rotation methods fold into the linears behind it.

    A channel whose scale is zero carries nothing. A norm with a bias is left as it is.
    """
    if getattr(norm, "bias", None) is not None or norm.weight is None:
        return ()
    scale = norm.weight.detach().float()
    return (Divide(torch.where(scale == 0, torch.ones_like(scale), scale)),)


def _sylvester(size: int) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(SYLVESTER, matrix)
    return matrix


def _paley(order: int) -> torch.Tensor | None:
    """Hadamard matrix [order, order], None where Paley gives none."""
    if order == 1:
        return torch.ones(1, 1)
    if order % 4:
        return None
    if field := _prime_power(order - 1):
        return _bordered(_residues(*field), -1.0) + torch.eye(order)
    if (field := _prime_power(order // 2 - 1)) and (order // 2 - 1) % 4 == 1:
        core = _bordered(_residues(*field), 1.0)
        diagonal = torch.tensor([[1.0, -1.0], [-1.0, -1.0]])
        return torch.kron(core, SYLVESTER) + torch.kron(torch.eye(order // 2), diagonal)
    return None


def _bordered(residues: torch.Tensor, sign: float) -> torch.Tensor:
    """The conference matrix [q + 1, q + 1]: zero diagonal, a border of ones, of sign below."""
    size = len(residues) + 1
    matrix = torch.zeros(size, size)
    matrix[0, 1:], matrix[1:, 0], matrix[1:, 1:] = 1.0, sign, residues
    return matrix


def _prime_power(number: int) -> tuple[int, int] | None:
    """(p, n) with p prime, p^n = number and n at most 3."""
    for exponent in (1, 2, 3):
        base = round(number ** (1 / exponent))
        prime = base > 1 and all(base % d for d in range(2, int(base**0.5) + 1))
        if prime and base**exponent == number:
            return base, exponent
    return None


def _residues(prime: int, exponent: int) -> torch.Tensor:
    """fp32 [q, q]: 1 where the difference of two field elements is a square, -1 where not."""
    elements = list(product(range(prime), repeat=exponent))
    multiply = _multiplication(prime, exponent)
    number = {element: index for index, element in enumerate(elements)}
    character = -torch.ones(len(elements))
    character[[number[multiply(e, e)] for e in elements]] = 1.0
    character[0] = 0.0
    digits = torch.tensor(elements)
    differences = (digits[:, None] - digits[None]) % prime
    places = torch.tensor([prime**power for power in reversed(range(exponent))])
    return character[(differences * places).sum(dim=2)]


def _multiplication(prime: int, exponent: int):
    """Product of two elements, coefficients with the highest power first.

    Up to degree 3 a polynomial without a root is irreducible.
    """
    tails = product(range(prime), repeat=exponent)
    tail = next(
        tail
        for tail in tails
        if exponent == 1 or all(_value((1, *tail), point, prime) for point in range(prime))
    )

    def multiply(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        result = [0] * exponent
        for digit in a:
            # Horner: result * x + digit * b, where x^n = -tail.
            carry, *rest = result
            result = [
                (shifted - carry * reduced + digit * other) % prime
                for shifted, reduced, other in zip((*rest, 0), tail, b, strict=True)
            ]
        return tuple(result)

    return multiply


def _value(coefficients: tuple[int, ...], point: int, prime: int) -> int:
    total = 0
    for coefficient in coefficients:
        total = (total * point + coefficient) % prime
    return total


def rotated_linear(
    linear: nn.Linear,
    moment: torch.Tensor,
    transforms: tuple[nn.Module, ...],
    weight_grid: WeightGrid,
    activations: ActivationGrid,
) -> FakeLinear:
    """A linear whose input is transformed, and whose weight is rounded as it multiplies that.

    Args:
        moment: fp32 [K, K], mean of x x^T before the transforms.
    """
    weight = transformed_weight(linear.weight.detach(), transforms)
    restored = weight_grid.restore(weight, transformed_moment(moment, transforms))
    return FakeLinear(restored.to(linear.weight.dtype), linear.bias, activations, transforms)


def transformed_moment(moment: torch.Tensor, transforms: tuple[nn.Module, ...]) -> torch.Tensor:
    """fp32 [K, K]: the mean of y y^T, y what the transforms make of x."""
    for transform in transforms:
        moment = transform.activations(moment)
        moment = transform.activations(moment.t().contiguous())
    return moment


@dataclass(frozen=True)
class Hadamard(Method):
    """Every linear input rotated whole by a Hadamard matrix, INT4 weights, INT4 activations.

    Attributes:
        weights: how weights are rounded.
        activations: how rotated inputs are rounded.
    """

    weights: WeightGrid = WeightGrid()
    activations: ActivationGrid = ActivationGrid(bits=4, group=128)

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Rotate and round every linear of the layer."""
        quantized = {}
        for seen in inputs.values():
            transforms = (whole_rotation(len(seen.absmax), seen.absmax.device),)
            for name in seen.group.linears:
                linear = layer.get_submodule(name)
                quantized[name] = rotated_linear(
                    linear, seen.moment, transforms, self.weights, self.activations
                )
        return quantized
