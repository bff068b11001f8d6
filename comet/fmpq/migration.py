# SPDX-License-Identifier: Apache-2.0
"""Migration before the permutation: part of each channel's range moves into the weights.

SmoothQuant (Xiao et al., ICML 2023, equation 4): channel j of an input is divided by
s_j = max|x_j|^a / max|w_j|^(1 - a), and the column of each weight that reads it is multiplied by
it. The division is folded into what produces the input, so a kernel sees nothing: the scale of the
norm before it, or the rows of the linear before the MLP's second one, where only a product or a
ReLU lies between. The attention's output is left as it is.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from comet.fmpq.plan import InputPlan
from comet.models.families import Family

SMALLEST = 1e-5


def migrate(
    layer: torch.nn.Module, family: Family, plans: Mapping[str, InputPlan], strength: float
) -> dict[str, InputPlan]:
    """Fold the migration into a decoder layer; changes its weights, its function stays the same.

    Args:
        layer: decoder layer.
        family: where its linears are.
        plans: by input name, nothing decided yet.
        strength: a, 0..1.

    Returns:
        Plans of the inputs as they are now.
    """
    migrated = {}
    for name, plan in plans.items():
        producer = plan.group.norm or (family.absorbs[-1] if name == "mlp_out" else None)
        if producer is None:
            migrated[name] = plan
            continue
        linears = [layer.get_submodule(linear) for linear in plan.group.linears]
        factor = migration_factor(plan, linears, strength)
        _divide_rows(layer.get_submodule(producer), factor)
        for linear in linears:
            linear.weight.data = linear.weight.data * factor.to(linear.weight)
        migrated[name] = _divided(plan, factor)
    return migrated


def migration_factor(
    plan: InputPlan, linears: list[torch.nn.Module], strength: float
) -> torch.Tensor:
    """s of each channel, fp32 [K], with a mean of log s of zero."""
    largest = plan.statistics.metric("max").clamp(min=SMALLEST)
    size = torch.stack([linear.weight.abs().amax(dim=0) for linear in linears]).amax(dim=0)
    size = size.float().cpu().clamp(min=SMALLEST)
    factor = largest**strength / size ** (1 - strength)
    return factor / factor.log().mean().exp()


def _divide_rows(producer: torch.nn.Module, factor: torch.Tensor) -> None:
    """A norm's scale [K] or a linear's rows [K, n], and the bias of either."""
    for value in producer.parameters():
        part = factor.to(value)
        value.data = value.data / (part[:, None] if value.dim() == 2 else part)


def _divided(plan: InputPlan, factor: torch.Tensor) -> InputPlan:
    scale = 1 / factor
    return replace(
        plan,
        statistics=plan.statistics.scaled(scale),
        sample=plan.sample * scale,
        spread=[part * scale.to(part) for part in plan.spread],
    )
