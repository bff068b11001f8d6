# SPDX-License-Identifier: Apache-2.0
"""The linear layers of an FMPQ checkpoint inside vLLM."""

from dataclasses import replace
from typing import Any

import torch
from torch.nn import Module, Parameter
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.parameter import (
    BasevLLMParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    PackedvLLMParameter,
)

from comet.errors import UserError
from comet.formats.blocks import BlockLayout, natural_permutation
from comet.formats.checkpoint import FORMAT_VERSION
from comet.formats.weights import PackedWeight
from comet.integrations.vllm import fusion
from comet.kernels.linear import in_natural_order, linear_kernel
from comet.kernels.operands import ActivationOperand
from comet.kernels.workspace import share_between_graphs

FIELDS = ("qweight", "group_scale", "group_zero", "channel_scale", "perm")
CAPABILITY = 80


class FmpqConfig(QuantizationConfig):
    """What ``quantization_config`` of an FMPQ checkpoint says.

    Args:
        options: the options that the checkpoint was made with.
        layers: facts of each quantized linear by its checkpoint name.

    Raises:
        UserError: a checkpoint of a newer format.
    """

    def __init__(self, version: int, options: dict[str, Any], layers: dict[str, dict]) -> None:
        super().__init__()
        if version > FORMAT_VERSION:
            raise UserError(
                f"FMPQ checkpoint of format version {version}, this comet reads up to "
                f"{FORMAT_VERSION}; update comet"
            )
        self.options, self.layers = options, layers

    def get_name(self) -> str:
        """Name of the method."""
        return "fmpq"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """What the kernels take."""
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Ampere."""
        return CAPABILITY

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Everything stands in ``config.json``."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FmpqConfig":
        """From the checkpoint's ``quantization_config``."""
        return cls(config["version"], config["options"], config["layers"])

    def get_quant_method(self, layer: Module, prefix: str):
        """The linear method of a quantized layer; what else there is stays in 16 bit.

        Raises:
            UserError: the checkpoint quantizes some of the layers that vLLM merges, but not all.
        """
        if not isinstance(layer, LinearBase):
            return None
        names = self._checkpoint_names(prefix)
        known = [name for name in names if name in self.layers]
        if not known:
            return UnquantizedLinearMethod()
        if len(known) < len(names):
            missing = ", ".join(sorted(set(names) - set(known)))
            raise UserError(f"vLLM merges {prefix}, but the checkpoint has no quantized {missing}")
        return FmpqLinearMethod(self.options, {name: self.layers[name] for name in names})

    def _checkpoint_names(self, prefix: str) -> list[str]:
        """Names in the checkpoint of what vLLM calls ``prefix`` (``...qkv_proj`` is three)."""
        path, _, leaf = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(leaf, [leaf])
        return [f"{path}.{part}" if path else part for part in parts]


class SharedPermutation(BasevLLMParameter):
    """int32 [K padded], one for all the linears that are merged into one layer."""

    loaded = False

    def _share(self, loaded_weight: torch.Tensor, **_: object) -> None:
        if self.loaded and not torch.equal(self.data.cpu(), loaded_weight.cpu()):
            raise UserError(
                "the checkpoint gives merged linears different permutations; quantize it again "
                "with comet, which shares one"
            )
        self._assert_and_load(loaded_weight)
        self.loaded = True

    load_column_parallel_weight = _share
    load_merged_column_weight = _share
    load_qkv_weight = _share


@register_weight_loader_v2_supported_method
class FmpqLinearMethod(LinearMethodBase):
    """Activation quantization and the W4Ax GEMM of one layer.

    Args:
        options: the options that the checkpoint was made with.
        facts: of each linear that the layer consists of, by its checkpoint name.

    Raises:
        UserError: merged linears whose inputs are cut into blocks differently.
    """

    def __init__(self, options: dict[str, Any], facts: dict[str, dict]) -> None:
        self.options = options
        first, *others = facts.values()
        for name, other in zip(list(facts)[1:], others, strict=True):
            if other != first:
                raise UserError(
                    f"{name} and {next(iter(facts))} read one input but differ: {facts}"
                )
        self.name = next(iter(facts))
        self.layout = BlockLayout(first["channels"], first["int4_blocks"], first["int8_blocks"])
        self.scale_kind, self.hadamard = first["scale_kind"], first["hadamard"]

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        """Empty parameters under the checkpoint's names.

        Raises:
            UserError: tensor parallelism, or a checkpoint of another model.
        """
        if input_size_per_partition != input_size:
            raise UserError(
                f"{self.name}: its permutation reaches over all {input_size} input channels, so it "
                "cannot be cut for tensor parallelism; serve with --tensor-parallel-size 1"
            )
        if input_size != self.layout.channels:
            raise UserError(
                f"{self.name} has {input_size} input channels in the model and "
                f"{self.layout.channels} in the checkpoint; quantize the model again"
            )
        if fusion.enabled():
            fusion.install()
        self.dtype = params_dtype
        loader, n = extra_weight_attrs["weight_loader"], sum(output_partition_sizes)
        blocks = self.layout.blocks
        scale_dtype = torch.uint8 if self.scale_kind == "group_int" else torch.float16
        groups = {"input_dim": 1, "output_dim": 0, "weight_loader": loader}
        parameters = {
            "qweight": PackedvLLMParameter(
                data=torch.zeros(n, self.layout.padded // 2, dtype=torch.uint8),
                packed_dim=1,
                packed_factor=2,
                **groups,
            ),
            "group_scale": GroupQuantScaleParameter(
                data=torch.ones(n, blocks, dtype=scale_dtype), **groups
            ),
            "group_zero": GroupQuantScaleParameter(
                data=torch.zeros(n, blocks, dtype=torch.uint8), **groups
            ),
            "channel_scale": ChannelQuantScaleParameter(
                data=torch.ones(n, dtype=torch.float32), output_dim=0, weight_loader=loader
            ),
            # Never left empty: dummy weights keep integers as they were allocated, and a gather
            # would follow them out of bounds.
            "perm": SharedPermutation(data=natural_permutation(self.layout), weight_loader=loader),
        }
        for name, parameter in parameters.items():
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer: Module) -> None:
        """Lay the weight out for the kernel of the device and free what was loaded."""
        if _dummy_weights():
            self._fill(layer)
        weight = PackedWeight(
            self.layout,
            layer.perm.data,
            *(getattr(layer, name).data for name in FIELDS[:-1]),
            self.scale_kind,
            self.hadamard,
        )
        weight.check()
        device = layer.qweight.device
        if device.type == "cuda":
            share_between_graphs(device)
        kernel = linear_kernel(
            self.layout,
            self.scale_kind,
            self.options["act_scale"],
            self.options["act_zero_point"],
            self.hadamard,
            device,
        )
        layer.comet_kernel = replace(kernel, dependent_launch=fusion.enabled())
        tiles, scales = layer.comet_kernel.prepare(weight, device)
        order = None if in_natural_order(weight) else _fixed(layer.perm.data.clone())
        for name in FIELDS:
            delattr(layer, name)
        layer.tiles, layer.scales = _fixed(tiles), _fixed(scales)
        layer.register_parameter("order", order)

    def _fill(self, layer: Module) -> None:
        """Random weights where vLLM loads none: zeros would flatter power, clocks and caches.

        Channels are permuted where a checkpoint permutes them: all but the input of the MLP's
        second linear, whose permutation the first ones have absorbed.
        """
        generator = torch.Generator(layer.qweight.device).manual_seed(0)
        layer.qweight.data.random_(0, 256, generator=generator)
        layer.group_zero.data.fill_(8)
        layer.group_scale.data.fill_(1)
        layer.channel_scale.data.fill_(0.01)
        if not self.name.endswith(("down_proj", "fc2")):
            real = layer.perm.data >= 0
            order = torch.randperm(self.layout.channels, generator=torch.Generator().manual_seed(0))
            layer.perm.data[real] = order.to(layer.perm.device, torch.int32)

    def apply(
        self,
        layer: Module,
        x: torch.Tensor | ActivationOperand,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[..., K] to [..., N]; no Python branch depends on the number of tokens.

        x is an operand where its quantization is fused with what precedes (``fusion``).
        """
        bias = None if bias is None else bias.float()
        if isinstance(x, ActivationOperand):
            return layer.comet_kernel.multiply(x, layer.tiles, layer.scales, bias, self.dtype)
        flat = x.reshape(-1, x.shape[-1])
        y = layer.comet_kernel(flat, layer.tiles, layer.scales, layer.order, bias)
        return y.view(*x.shape[:-1], y.shape[-1])


def _fixed(tensor: torch.Tensor) -> Parameter:
    return Parameter(tensor, requires_grad=False)


def _dummy_weights() -> bool:
    from vllm.config import get_current_vllm_config

    return get_current_vllm_config().load_config.load_format == "dummy"
