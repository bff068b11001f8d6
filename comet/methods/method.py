# SPDX-License-Identifier: Apache-2.0
"""The interface of a quantization method: one decoder layer at a time, on calibration inputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from comet.accuracy.kv_quantization import KVQuantization
from comet.fmpq.statistics import weighted
from comet.methods.linear import FakeLinear
from comet.models.families import Family, InputGroup

SAMPLE_TOKENS = 2048


@dataclass
class LayerInput:
    """What calibration saw of one linear input, K channels wide.

    Attributes:
        group: the input and the linears that share it.
        absmax: fp32 [K], largest magnitude of each channel.
        mean_magnitude: fp32 [K], mean magnitude of each channel.
        moment: fp32 [K, K], mean of x x^T, of tokens as ``Method.end_loss`` counts them.
        sample: fp32 [tokens, K], tokens spread evenly over the calibration text.
    """

    group: InputGroup
    absmax: torch.Tensor
    mean_magnitude: torch.Tensor
    moment: torch.Tensor
    sample: torch.Tensor


@dataclass(frozen=True)
class Block:
    """A decoder layer as a function, for methods that train against its output.

    Attributes:
        index: number of the layer.
        hidden: [windows, T, hidden size], the outputs of the layers quantized so far; None where
            the method is not sequential.
        target: the same shape, what this layer puts out in the 16-bit model; None where the method
            does not train.
        forward: ``forward(layer, hidden [n, T, H]) -> [n, T, H]``; gradients flow through it.
        heads, kv_heads, head_dim: of the attention.
    """

    index: int
    hidden: torch.Tensor | None
    target: torch.Tensor | None
    forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Method(ABC):
    """A quantization method with its settings; settings are further fields of a subclass.

    Attributes:
        label: bits and method as tables print them.
        kv: how K and V are kept, None for 16 bit.
        sequential: later layers are calibrated on the outputs of quantized ones.
        end_loss: calibration tokens count in ``LayerInput.moment`` by what an error of theirs costs
            the model's loss (``comet.fmpq.end_loss``), as FMPQ's option of that name has it; the
            papers count every token the same.
        calibrated: ``quantize_layer`` looks at inputs; where False, ``inputs`` is empty.
        trains: against the outputs of the 16-bit model's layers; such a method is sequential.
    """

    label: str
    kv: KVQuantization | None = field(default=None, kw_only=True)
    sequential: bool = field(default=False, kw_only=True)
    end_loss: bool = field(default=False, kw_only=True)
    calibrated: bool = field(default=True, kw_only=True)
    trains: ClassVar[bool] = False

    @abstractmethod
    def quantize_layer(
        self, layer: nn.Module, family: Family, inputs: Mapping[str, LayerInput], block: Block
    ) -> dict[str, FakeLinear]:
        """Quantize every linear of a decoder layer.

        Args:
            layer: the 16-bit layer; its weights may be changed.
            family: where its linears are.
            inputs: calibration inputs by name (``attn_in``, ``attn_out``, ``mlp_in``, ``mlp_out``).
            block: the layer as a function.

        Returns:
            A quantized layer for each of ``family.linears``.
        """


def watch_inputs(
    layer: nn.Module,
    family: Family,
    run: Callable[[], None],
    tokens: int,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, LayerInput]:
    """Watch each linear input while ``run`` pushes ``tokens`` calibration tokens through.

    Args:
        weights: fp32 [tokens] of mean 1 by input, what tokens count in the second moment; None for
            all the same.
    """
    watchers = {}
    with ExitStack() as hooks:
        for group in family.inputs:
            linear = layer.get_submodule(group.linears[0])
            own = None if weights is None else weights[group.name]
            watcher = watchers[group.name] = _Watcher(group, linear.in_features, tokens, own)
            hook = linear.register_forward_pre_hook(lambda _, x, see=watcher.see: see(x[0]))
            hooks.callback(hook.remove)
        run()
    return {name: watcher.result() for name, watcher in watchers.items()}


class _Watcher:
    def __init__(
        self, group: InputGroup, channels: int, tokens: int, weights: torch.Tensor | None
    ) -> None:
        self.group, self.weights, self.seen = group, weights, 0
        self.stride = max(1, -(-tokens // SAMPLE_TOKENS))
        self.absmax = torch.zeros(channels)
        self.magnitude = torch.zeros(channels, dtype=torch.float64)
        self.moment = torch.zeros(channels, channels)
        self.samples: list[torch.Tensor] = []

    def see(self, x: torch.Tensor) -> None:
        x = x.detach().reshape(-1, x.shape[-1]).float()
        if not self.seen:
            self.absmax, self.magnitude, self.moment = (
                total.to(x.device) for total in (self.absmax, self.magnitude, self.moment)
            )
        size = x.abs()
        self.absmax = torch.maximum(self.absmax, size.amax(dim=0))
        self.magnitude += size.double().sum(dim=0)
        self.samples.append(x[-self.seen % self.stride :: self.stride].clone())
        self.moment.addmm_(weighted(x, self.weights, self.seen).t(), x)
        self.seen += x.shape[0]

    def result(self) -> LayerInput:
        return LayerInput(
            self.group,
            self.absmax,
            (self.magnitude / self.seen).float(),
            self.moment / self.seen,
            torch.cat(self.samples),
        )
