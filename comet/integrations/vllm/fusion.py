# SPDX-License-Identifier: Apache-2.0
"""Quantization fused with what precedes a linear layer: RMSNorm with its residual, SiLU gating.

vLLM's own fusion knows FP8 only. Here, after the weights are loaded, the norms and the activation
of a decoder layer are replaced by modules that give the quantized operand of the linear layer
behind them, which passes through vLLM's forward functions as the hidden states did. That holds for
decoder layers whose forward hands a norm's result to one linear layer and to nothing else; the
classes are listed, every other one keeps separate operators.
"""

import inspect
import os

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger

from comet.kernels.operands import ActivationOperand
from comet.kernels.quantization_call import MAX_CHANNELS_NORM

logger = init_logger(__name__)
DECODER_LAYERS = (
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
)
LOADER_ARGUMENTS = ["model", "model_config", "target_device"]
# Set to 0: separate operators, and no launch before the previous kernel has ended. vLLM's compile
# cache does not know it: set VLLM_DISABLE_COMPILE_CACHE=1 beside it.
VARIABLE = "COMET_VLLM_FUSION"
_WRAPPED = "comet_wrapped"


def enabled() -> bool:
    """Whether operators are fused and launches overlap."""
    return os.environ.get(VARIABLE, "1") != "0"


class QuantizingNorm(nn.Module):
    """RMSNorm whose result is the operand of a linear layer.

    Args:
        norm: vLLM's.
        linear: with the ``comet_kernel`` and ``order`` of ``FmpqLinearMethod``.
    """

    def __init__(self, norm: nn.Module, linear: nn.Module) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon
        self.kernel, self.order = linear.comet_kernel, linear.order

    def forward(
        self, x: Tensor, residual: Tensor | None = None
    ) -> ActivationOperand | tuple[ActivationOperand, Tensor]:
        """The operand for x [M, K]; with a residual also x + residual."""
        operand, total = self.kernel.quantize_normed(
            x, self.weight, self.epsilon, residual, self.order
        )
        return operand if total is None else (operand, total)


class QuantizingSilu(nn.Module):
    """SiLU gating whose result is the operand of a linear layer; ``linear`` as above."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.kernel, self.order = linear.comet_kernel, linear.order

    def forward(self, x: Tensor) -> ActivationOperand:
        """The operand for silu(gate) * up, x [M, 2 K] being gate and up side by side."""
        return self.kernel.quantize_gated(*x.chunk(2, dim=-1), self.order)


def fuse(model: nn.Module) -> int:
    """Replace norms and activations of a loaded model's decoder layers; returns how many."""
    return sum(
        _fuse_layer(layer)
        for layer in list(model.modules())
        if type(layer).__name__ in DECODER_LAYERS
    )


def _fuse_layer(layer: nn.Module) -> int:
    made = 0
    readers = {
        "input_layernorm": layer.self_attn.qkv_proj,
        "post_attention_layernorm": layer.mlp.gate_up_proj,
    }
    # Some Mistral models scale the second norm's result.
    if getattr(layer, "ada_rms_norm_t_cond", None) is not None:
        del readers["post_attention_layernorm"]
    for name, linear in readers.items():
        norm = getattr(layer, name)
        if _is_quantized(linear) and _is_plain(norm):
            setattr(layer, name, QuantizingNorm(norm, linear))
            made += 1
    if _is_quantized(layer.mlp.down_proj) and type(layer.mlp.act_fn).__name__ == "SiluAndMul":
        layer.mlp.act_fn = QuantizingSilu(layer.mlp.down_proj)
        made += 1
    return made


def _is_quantized(linear: nn.Module) -> bool:
    return hasattr(linear, "comet_kernel")


def _is_plain(norm: nn.Module) -> bool:
    plain = type(norm).__name__ == "RMSNorm" and norm.variance_size_override is None
    return plain and norm.has_weight and norm.weight.shape[0] <= MAX_CHANNELS_NORM


def install() -> None:
    """Let vLLM's loaders fuse what they have loaded; safe to call again.

    The function that prepares loaded weights is wrapped where the loaders look it up. A vLLM with
    another one is served with separate operators.
    """
    from vllm.model_executor.model_loader import base_loader

    original = base_loader.process_weights_after_loading
    if hasattr(original, _WRAPPED):
        return
    found = list(inspect.signature(original).parameters)
    if found != LOADER_ARGUMENTS:
        takes = ", ".join(found)
        logger.warning_once("this vLLM's loader takes %s: quantization is not fused", takes)
        return

    def process_weights_after_loading(
        model: nn.Module, model_config, target_device: torch.device
    ) -> None:
        original(model, model_config, target_device)
        if getattr(get_current_vllm_config(), "lora_config", None) is not None:
            return  # adapters read the 16-bit input of a layer
        count = fuse(model)
        logger.info_once("FMPQ: quantization is fused with %d norms and activations", count)

    setattr(process_weights_after_loading, _WRAPPED, True)
    base_loader.process_weights_after_loading = process_weights_after_loading
