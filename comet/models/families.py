# SPDX-License-Identifier: Apache-2.0
"""What differs between the supported decoder families: where layers, linears and inputs are."""

from dataclasses import dataclass

import torch

from comet.errors import UserError


@dataclass(frozen=True)
class InputGroup:
    """The linears of a decoder layer that read the same input.

    Attributes:
        name: ``attn_in``, ``attn_out``, ``mlp_in`` or ``mlp_out``.
        linears: their names inside a decoder layer; the first one stands for the group.
        norm: the norm that produces the input, ``None`` where no norm does.
    """

    name: str
    linears: tuple[str, ...]
    norm: str | None = None


@dataclass(frozen=True)
class Family:
    """One decoder family.

    Attributes:
        name: the ``model_type`` of its Hugging Face configurations.
        layers: name of the list of decoder layers inside the causal language model.
        inputs: the four input groups of a layer, in the order in which a layer computes them.
        absorbs: linears whose output rows can take over a permutation of ``mlp_out`` exactly,
            because only elementwise operations lie between them.
        before_layers: modules that run before the first layer.
        after_layers: modules that run after the last layer, in order.
    """

    name: str
    layers: str
    inputs: tuple[InputGroup, ...]
    absorbs: tuple[str, ...]
    before_layers: tuple[str, ...]
    after_layers: tuple[str, ...]

    @property
    def linears(self) -> tuple[str, ...]:
        """All linears of a layer, in the order in which a layer computes them."""
        return tuple(linear for group in self.inputs for linear in group.linears)

    def group_of(self, linear: str) -> InputGroup:
        """The input group that ``linear`` (a name inside a layer) belongs to."""
        return next(group for group in self.inputs if linear in group.linears)

    def layers_of(self, model: torch.nn.Module) -> torch.nn.ModuleList:
        """The decoder layers of a causal language model of this family."""
        return model.get_submodule(self.layers)


def _gated(name: str) -> Family:
    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return Family(
        name=name,
        layers="model.layers",
        inputs=(
            InputGroup("attn_in", qkv, "input_layernorm"),
            InputGroup("attn_out", ("self_attn.o_proj",)),
            InputGroup("mlp_in", gate_up, "post_attention_layernorm"),
            InputGroup("mlp_out", ("mlp.down_proj",)),
        ),
        absorbs=gate_up,
        before_layers=("model.embed_tokens",),
        after_layers=("model.norm", "lm_head"),
    )


def _opt() -> Family:
    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return Family(
        name="opt",
        layers="model.decoder.layers",
        inputs=(
            InputGroup("attn_in", qkv, "self_attn_layer_norm"),
            InputGroup("attn_out", ("self_attn.out_proj",)),
            InputGroup("mlp_in", ("fc1",), "final_layer_norm"),
            InputGroup("mlp_out", ("fc2",)),
        ),
        absorbs=("fc1",),
        before_layers=(
            "model.decoder.embed_tokens",
            "model.decoder.embed_positions",
            "model.decoder.project_in",
        ),
        after_layers=("model.decoder.final_layer_norm", "model.decoder.project_out", "lm_head"),
    )


FAMILIES = {
    **{name: _gated(name) for name in ("llama", "mistral", "qwen2", "qwen3")},
    "opt": _opt(),
}


def family_named(name: str, where: str) -> Family:
    """The family called ``name``; ``where`` says in an error who asked for it.

    Raises:
        UserError: the family is not supported.
    """
    if name not in FAMILIES:
        raise UserError(
            f"{where}: unsupported model family {name!r}; supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[name]
