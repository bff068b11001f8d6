# SPDX-License-Identifier: Apache-2.0
"""OmniQuant (Shao et al., ICLR 2024): clipping and equivalent transformation, learned block-wise.

Section 3.1, equation 1: a decoder layer at a time, the squared difference between its quantized
output and the output of the 16-bit layer on the 16-bit model's hidden states is minimized by
AdamW, over a few parameters and not over weights:

- learnable weight clipping (section 3.2, equation 2): the range of each group is
  sigmoid(beta) min(W) .. sigmoid(gamma) max(W), both factors learned;
- learnable equivalent transformation (section 3.3, equation 3): channels of the input are divided
  by a learned scale, the weight's columns multiplied by it, from SmoothQuant's scale on. It applies
  to inputs that follow a norm and to the attention output, where the scale folds into V and is
  therefore one for all query heads of a K and V head; not to the MLP's second linear (section
  3.3). The shift of equation 3 is left out, as the authors' code does for LLaMA, and so is the
  scale between Q and K (equation 5), which changes nothing while attention stays in 16 bit.

The paper trains 20 epochs on 128 windows of 2,048 tokens; the defaults here are for a CPU and make
up for few steps by larger ones. Scales are learned as logarithms, so that they stay positive.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from comet.fmpq.learned_clip import FIRST_FACTOR, fake_quantize
from comet.methods.linear import ActivationGrid, Divide, FakeLinear
from comet.methods.method import Block, LayerInput, Method
from comet.methods.smoothquant import migration_scale
from comet.models.families import Family


class _Scale(nn.Module):
    """A learned scale of the channels of an input, fp32 [K].

    Args:
        start: fp32 [K], where training starts.
        shared: consecutive runs of ``run`` channels that share their scale.
        run: channels of a run; a divisor of K.
    """

    def __init__(self, start: torch.Tensor, shared: int, run: int) -> None:
        super().__init__()
        self.shared, self.run = shared, run
        runs = start.view(-1, shared, run).amax(dim=1)
        self.log = nn.Parameter(runs.log())

    def forward(self) -> torch.Tensor:
        return self.log.exp().repeat_interleave(self.shared, dim=0).flatten()


class _TrainedLinear(nn.Module):
    """A linear with a learned range of each weight group, and the learned scale of its input."""

    def __init__(
        self,
        linear: nn.Linear,
        bits: int,
        group: int | None,
        activations: ActivationGrid,
        scale: _Scale | None,
    ) -> None:
        super().__init__()
        self.linear, self.bits, self.activations, self.scale = linear, bits, activations, scale
        rows, columns = linear.weight.shape
        self.group = group or columns
        groups = -(-columns // self.group)
        factor = linear.weight.new_full((rows, groups, 1), FIRST_FACTOR, dtype=torch.float32)
        self.low, self.high = nn.Parameter(factor.clone()), nn.Parameter(factor.clone())

    def weight(self) -> torch.Tensor:
        """fp32 [N, K], rounded and restored."""
        weight = self.linear.weight.float()
        if self.scale is not None:
            weight = weight * self.scale()
        columns = weight.shape[1]
        # Zeros at the end of a last group change no range, for ranges hold zero anyway.
        groups = nn.functional.pad(weight, (0, -columns % self.group))
        groups = groups.unflatten(1, (-1, self.group))
        low = groups.amin(dim=2, keepdim=True).clamp(max=0) * self.low.sigmoid()
        high = groups.amax(dim=2, keepdim=True).clamp(min=0) * self.high.sigmoid()
        return fake_quantize(groups, low, high, self.bits).flatten(1)[:, :columns]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is not None:
            x = x / self.scale().to(x.dtype)
        if self.activations.bits is not None:
            low = x.amin(dim=-1, keepdim=True).clamp(max=0)
            high = x.amax(dim=-1, keepdim=True).clamp(min=0)
            x = fake_quantize(x, low, high, self.activations.bits)
        return nn.functional.linear(x, self.weight().to(x.dtype), self.linear.bias)

    @torch.no_grad()
    def result(self) -> FakeLinear:
        transforms = () if self.scale is None else (Divide(self.scale()),)
        weight = self.weight().to(self.linear.weight.dtype)
        return FakeLinear(weight, self.linear.bias, self.activations, transforms)


@dataclass(frozen=True)
class OmniQuant(Method):
    """Weights rounded to the nearest within learned ranges.

    Attributes:
        bits: of a weight.
        group: input channels that share a scale, None for an output channel.
        activation_bits: of the inputs, rounded per token with a zero point; None for 16 bit.
        transform: learn the equivalent transformation too, as the paper does where activations are
            rounded; needs ``calibrated``.
        alpha: of SmoothQuant's scale, where the transformation starts.
        epochs: passes over the calibration windows, one window a step.
        clip_rate: AdamW's learning rate of the clipping factors.
        scale_rate: of the logarithms of the scales.
    """

    sequential: bool = field(default=True, kw_only=True)
    trains: ClassVar[bool] = True

    bits: int = 4
    group: int | None = 128
    activation_bits: int | None = None
    transform: bool = False
    alpha: float = 0.5
    epochs: int = 2
    clip_rate: float = 0.3
    scale_rate: float = 0.02

    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Train the layer's ranges and scales against its 16-bit output."""
        trained = {}
        for group in family.inputs:
            scale = self._scale(layer, inputs[group.name], block) if self.transform else None
            for name in group.linears:
                trained[name] = _TrainedLinear(
                    layer.get_submodule(name),
                    self.bits,
                    self.group,
                    ActivationGrid(bits=self.activation_bits, symmetric=False),
                    scale,
                )
        for name, linear in trained.items():
            parent, _, leaf = name.rpartition(".")
            setattr(layer.get_submodule(parent), leaf, linear)
        self._train(layer, trained, block)
        return {name: linear.result() for name, linear in trained.items()}

    def _scale(self, layer: nn.Module, watched: LayerInput, block: Block) -> _Scale | None:
        group = watched.group
        if group.norm is None and group.name != "attn_out":
            return None
        weights = [layer.get_submodule(name).weight.detach() for name in group.linears]
        start = migration_scale(watched.absmax, weights, self.alpha)
        if group.norm is not None:
            return _Scale(start, 1, len(start))
        return _Scale(start, block.heads // block.kv_heads, block.head_dim)

    @torch.enable_grad()
    def _train(self, layer: nn.Module, trained: dict[str, _TrainedLinear], block: Block) -> None:
        factors, scales = [], set()
        for linear in trained.values():
            factors += [linear.low, linear.high]
            if linear.scale is not None:
                scales.add(linear.scale.log)
        groups = [{"params": factors, "lr": self.clip_rate}]
        groups.append({"params": list(scales), "lr": self.scale_rate})
        optimizer = torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=0.0)
        with _repeatable_attention(block.hidden.device):
            for _ in range(self.epochs):
                for hidden, target in zip(block.hidden, block.target, strict=True):
                    output = block.forward(layer, hidden[None])
                    loss = (output - target).float().square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()


def _repeatable_attention(device: torch.device) -> AbstractContextManager:
    """The fused attention of a GPU sums gradients in another order every time."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cuda" else nullcontext()
