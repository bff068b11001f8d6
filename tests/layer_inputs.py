# SPDX-License-Identifier: Apache-2.0
"""Calibration inputs and decoder-layer stand-ins for tests of methods."""

import torch

from comet.methods.method import Block, LayerInput
from comet.models.families import FAMILIES

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
HIDDEN, MLP = HEADS * HEAD_DIM, 48
FAMILY = FAMILIES["llama"]


def correlated(tokens: int, channels: int, seed: int = 0) -> torch.Tensor:
    """fp32 [tokens, channels], correlated, with one channel of twenty times the others' size."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(channels, channels, generator=generator) / channels**0.5
    x = torch.randn(tokens, channels, generator=generator) @ mixing
    x[:, 1] *= 20
    return x


def observed(name: str, x: torch.Tensor) -> LayerInput:
    """What calibration keeps of the input ``name`` when it sees ``x``."""
    group = next(group for group in FAMILY.inputs if group.name == name)
    size = x.abs()
    moment = x.t() @ x / len(x)
    return LayerInput(group, size.amax(dim=0), size.mean(dim=0), moment, x)


def layer_inputs(tokens: int = 256) -> dict[str, LayerInput]:
    """All four inputs of ``decoder_layer``."""
    widths = {"mlp_out": MLP}
    return {
        group.name: observed(group.name, correlated(tokens, widths.get(group.name, HIDDEN), seed))
        for seed, group in enumerate(FAMILY.inputs)
    }


def decoder_layer(seed: int = 0) -> torch.nn.Module:
    """Linears under the names of a LLaMA decoder layer, without what lies between them."""
    torch.manual_seed(seed)
    sizes = {"q_proj": HIDDEN, "k_proj": KV_HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM}
    layer = torch.nn.Module()
    layer.self_attn, layer.mlp = torch.nn.Module(), torch.nn.Module()
    for name in FAMILY.linears:
        leaf = name.rpartition(".")[2]
        width = MLP if leaf == "down_proj" else HIDDEN
        rows = sizes.get(leaf, MLP if leaf in ("gate_proj", "up_proj") else HIDDEN)
        linear = torch.nn.Linear(width, rows, bias=leaf == "q_proj")
        linear.weight.data = torch.randn(rows, width) * 0.1
        setattr(layer.get_submodule(name.rpartition(".")[0]), leaf, linear)
    return layer.requires_grad_(False)


def block(kv_heads: int = KV_HEADS) -> Block:
    """A block for methods that do not train."""
    return Block(0, None, None, lambda layer, hidden: hidden, HEADS, kv_heads, HEAD_DIM)


def output_error(exact: torch.nn.Linear, quantized: torch.nn.Module, x: torch.Tensor) -> float:
    """Squared error of the output as a share of its energy."""
    reference = exact(x)
    return float((quantized(x) - reference).square().sum() / reference.square().sum())
