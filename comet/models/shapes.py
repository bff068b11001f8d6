# SPDX-License-Identifier: Apache-2.0
"""Shapes of the linears of a decoder layer, as the kernels see them.

q, k and v are one matrix product, and so are gate and up, because each pair reads one input.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transformers import PreTrainedConfig

from comet.errors import UserError
from comet.models.families import family_named

TABLE = Path(__file__).resolve().parents[2] / "resources" / "paper" / "model_shapes.csv"
LINEARS = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class ModelShapes:
    """Sizes of one model.

    Attributes:
        model: its name, in the table the paper's spelling.
        hidden, intermediate: widths of the hidden state and of the MLP.
        layers: number of decoder layers.
        heads, kv_heads, head_dim: of attention.
        vocab: number of tokens.
        linears: name in ``LINEARS`` -> (N outputs, K inputs), with grouped-query attention and
            gate + up fused; an MLP without a gate has its first linear as ``gate_up``.
        printed: the same as the paper prints them: QKV 3 x hidden wide, one of gate and up. Empty
            for a model that is not in the table.
    """

    model: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    linears: dict[str, tuple[int, int]]
    printed: dict[str, tuple[int, int]]

    @property
    def linear_weights(self) -> int:
        """Number of weights in the linears of all layers."""
        return self.layers * sum(n * k for n, k in self.linears.values())


@cache
def shape_table(path: Path = TABLE) -> dict[str, ModelShapes]:
    """The models of the paper: name -> shapes.

    Raises:
        UserError: the table is missing.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; restore it from the repository")
    with path.open(encoding="utf-8", newline="") as stream:
        return {row["model"]: _from_row(row) for row in csv.DictReader(stream)}


def _from_row(row: dict[str, str]) -> ModelShapes:
    def pair(prefix: str) -> tuple[int, int]:
        return int(row[f"{prefix}_n"]), int(row[f"{prefix}_k"])

    derived = {"gate_up": pair("derived_gate_up_fused")}
    derived |= {name: pair(f"derived_{name}") for name in LINEARS if name != "gate_up"}
    return ModelShapes(
        model=row["model"],
        hidden=int(row["cfg_hidden"]),
        intermediate=int(row["cfg_intermediate"]),
        layers=int(row["cfg_layers"]),
        heads=int(row["cfg_heads"]),
        kv_heads=int(row["cfg_kv_heads"]),
        head_dim=int(row["cfg_head_dim"]),
        vocab=int(row["cfg_vocab"]),
        linears={name: derived[name] for name in LINEARS},
        printed={name: pair(f"paper_{name}") for name in LINEARS},
    )


def shapes_of(model: str) -> ModelShapes:
    """Shapes of a model of the table.

    Raises:
        UserError: the table does not have it.
    """
    table = shape_table()
    if model not in table:
        raise UserError(f"no shapes of a model {model!r}; known are {', '.join(table)}")
    return table[model]


def shapes_from_config(config: PreTrainedConfig, model: str) -> ModelShapes:
    """Shapes of a model that is not in the table.

    Args:
        config: its transformers configuration, of a supported family.
        model: how to name it.

    Raises:
        UserError: the family is not supported.
    """
    family = family_named(config.model_type, model)
    gated = family.name != "opt"
    hidden, heads = config.hidden_size, config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    intermediate = config.intermediate_size if gated else config.ffn_dim
    return ModelShapes(
        model=model,
        hidden=hidden,
        intermediate=intermediate,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config.vocab_size,
        linears={
            "qkv": ((heads + 2 * kv_heads) * head_dim, hidden),
            "o": (hidden, heads * head_dim),
            "gate_up": (intermediate * (2 if gated else 1), hidden),
            "down": (hidden, intermediate),
        },
        printed={},
    )
