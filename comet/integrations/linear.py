# SPDX-License-Identifier: Apache-2.0
"""A linear layer of an FMPQ checkpoint whose tensors a framework's loader fills in."""

from collections.abc import Mapping

import torch
from torch import nn

from comet.fmpq.layer import W4AxLinear
from comet.formats.blocks import BlockLayout
from comet.formats.weights import PackedWeight
from comet.kernels.linear import in_natural_order, linear_kernel

FIELDS = ("qweight", "group_scale", "group_zero", "channel_scale", "perm")


class FMPQLinear(nn.Module):
    """``nn.Linear`` on an FMPQ weight; W4Ax kernels on a GPU, restored values on a CPU.

    The buffers bear the names and types of the checkpoint. Once a GPU holds the weight in the
    kernel's own layout they are in host memory, from where they can be saved.

    Args:
        facts: what ``config.json`` says of the layer (``comet.formats.checkpoint.packed_facts``).
        out_features: N.
        bias: whether the layer has one.
        act_scale: activation scale mode.
        act_zero_point: zero point on INT4 blocks.
        dtype: of the bias and, on a GPU, of inputs and outputs.
        device: of the empty buffers, for instance ``meta``.
    """

    def __init__(
        self,
        facts: Mapping,
        out_features: int,
        bias: bool,
        act_scale: str,
        act_zero_point: bool = False,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        layout = BlockLayout(facts["channels"], facts["int4_blocks"], facts["int8_blocks"])
        self.layout = layout
        self.scale_kind, self.hadamard = facts["scale_kind"], facts["hadamard"]
        self.act_scale, self.act_zero_point = act_scale, act_zero_point
        group_scale = torch.uint8 if self.scale_kind == "group_int" else torch.float16
        shapes = {
            "qweight": ((out_features, layout.padded // 2), torch.uint8),
            "group_scale": ((out_features, layout.blocks), group_scale),
            "group_zero": ((out_features, layout.blocks), torch.uint8),
            "channel_scale": ((out_features,), torch.float32),
            "perm": ((layout.padded,), torch.int32),
        }
        for name, (shape, kind) in shapes.items():
            self.register_buffer(name, torch.empty(shape, dtype=kind, device=device))
        empty = torch.empty(out_features, dtype=dtype, device=device) if bias else None
        self.bias = None if empty is None else nn.Parameter(empty, requires_grad=False)
        # In a tuple, so that it is no submodule and nothing of it is saved.
        self._reference: tuple[W4AxLinear] | None = None
        self._prepared: tuple | None = None

    @property
    def in_features(self) -> int:
        """K."""
        return self.layout.channels

    @property
    def out_features(self) -> int:
        """N."""
        return self.channel_scale.shape[0]

    def packed(self) -> PackedWeight:
        """The weight as ``comet.formats`` knows it."""
        fields = self.qweight, self.group_scale, self.group_zero, self.channel_scale
        return PackedWeight(self.layout, self.perm, *fields, self.scale_kind, self.hadamard)

    def _apply(self, fn, recurse=True):
        """Move or cast, but keep the types of the packed fields: casting the model to 16 bit would
        round the channel scales."""
        kept = {name: self._buffers[name] for name in FIELDS}
        super()._apply(fn, recurse)
        for name, before in kept.items():
            after = self._buffers[name]
            self._buffers[name] = before.to(after.device) if after.dtype != before.dtype else after
        self._reference = self._prepared = None
        return self

    def prepare(self) -> None:
        """Lay the weight out for the kernel where it is on a GPU; the first forward does it too,
        but cannot be compiled then."""
        if self.qweight.is_cuda:
            self._on_gpu(self.qweight.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] to [..., N], same dtype.

        Raises:
            UserError: on a GPU, an input that is neither fp16 nor bf16.
        """
        if not x.is_cuda:
            return self._on_cpu(x)
        kernel, tiles, scales, permutation, bias = self._on_gpu(x.device)
        y = kernel(x.reshape(-1, x.shape[-1]), tiles, scales, permutation, bias)
        return y.view(*x.shape[:-1], self.out_features)

    def _on_cpu(self, x: torch.Tensor) -> torch.Tensor:
        if self._reference is None:
            weight = self.packed()
            weight.check()
            reference = W4AxLinear(weight, self.bias, self.act_scale, self.act_zero_point)
            self._reference = (reference,)
        return self._reference[0](x)

    def _on_gpu(self, device: torch.device) -> tuple:
        """(kernel, tiles, scales, permutation or None, fp32 bias or None), made once."""
        if self._prepared is None:
            weight = self.packed()
            weight.check()
            kernel = linear_kernel(
                self.layout,
                self.scale_kind,
                self.act_scale,
                self.act_zero_point,
                self.hadamard,
                device,
            )
            self._prepared = (
                kernel,
                *kernel.prepare(weight, device),
                None if in_natural_order(weight) else self.perm.to(device),
                None if self.bias is None else self.bias.detach().float().to(device),
            )
            for name in FIELDS:
                self._buffers[name] = self._buffers[name].cpu()
        return self._prepared
