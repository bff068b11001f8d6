# SPDX-License-Identifier: Apache-2.0
"""The methods by the name that records and tables give them."""

from dataclasses import fields, replace

from comet.accuracy.kv_quantization import KVQuantization
from comet.errors import UserError
from comet.methods.atom import Atom
from comet.methods.awq import AWQ
from comet.methods.gptq import GPTQ
from comet.methods.linear import ActivationGrid
from comet.methods.method import Method
from comet.methods.omniquant import OmniQuant
from comet.methods.qoq import QoQ
from comet.methods.quarot import QuaRot
from comet.methods.rotation import Hadamard
from comet.methods.rtn import RoundToNearest
from comet.methods.smoothquant import SmoothQuant
from comet.methods.weight_grid import WeightGrid

TOKEN_INT8 = ActivationGrid(bits=8)
TOKEN_KV4 = KVQuantization(key_granularity="token")
QUAROT_KV4 = KVQuantization(key_granularity="token", clip=0.95, hadamard=True)
BLOCK_INT4 = ActivationGrid(bits=4, group=128, clip=0.9)
NEAREST = replace(QuaRot("").weights, rounding="nearest")

METHODS: dict[str, Method] = {
    "rtn-w8a8": RoundToNearest(
        "W8A8 round-to-nearest",
        weight_bits=8,
        weight_group=None,
        activations=TOKEN_INT8,
        calibrated=False,
    ),
    "rtn-w4a16": RoundToNearest("W4A16 g128 round-to-nearest", calibrated=False),
    "gptq-w4a16": GPTQ("W4A16 g128 GPTQ"),
    "gptq-w4a16-channel": GPTQ("W4A16 GPTQ", group=None),
    "smoothquant-w8a8": SmoothQuant("W8A8 SmoothQuant"),
    "awq-w4a16": AWQ("W4A16 g128 AWQ"),
    "awq-w4a16-channel": AWQ("W4A16 AWQ", group=None),
    "omniquant-w4a16": OmniQuant("W4A16 g128 OmniQuant", calibrated=False),
    "omniquant-w4a16-channel": OmniQuant("W4A16 OmniQuant", group=None, calibrated=False),
    "omniquant-w4a4": OmniQuant("W4A4 OmniQuant", group=None, activation_bits=4, transform=True),
    "hadamard-w4a4": Hadamard("W4A4 g128, whole Hadamard, asymmetric GPTQ"),
    "quarot-w4a4": QuaRot("W4A4 QuaRot, GPTQ", kv=QUAROT_KV4),
    "quarot-rtn-w4a4": QuaRot("W4A4 QuaRot, round-to-nearest", weights=NEAREST, kv=QUAROT_KV4),
    "quarot-g128-w4a4": QuaRot(
        "W4A4 g128 QuaRot, asymmetric GPTQ",
        weights=WeightGrid(),
        activations=BLOCK_INT4,
        kv=QUAROT_KV4,
    ),
    "atom-w4a4": Atom("W4A4 g128 Atom", kv=TOKEN_KV4),
    "atom-weighted-w4a4": Atom(
        "W4A4 g128 Atom, asymmetric GPTQ", weights=WeightGrid(), kv=TOKEN_KV4
    ),
    "qoq-w4a8": QoQ("W4A8 QoQ", group=None, kv=TOKEN_KV4),
    "qoq-g128-w4a8": QoQ("W4A8 g128 QoQ", kv=TOKEN_KV4),
}


def method_named(name: str, settings: dict | None = None) -> Method:
    """A method, with some of its settings changed.

    Raises:
        UserError: unknown method or setting.
    """
    if name not in METHODS:
        raise UserError(f"method {name!r} is unknown; use one of {', '.join(METHODS)}")
    method, settings = METHODS[name], settings or {}
    known = {field.name for field in fields(method)} - {"label", "kv", "sequential", "calibrated"}
    for key in settings:
        if key not in known:
            raise UserError(
                f"config key methods.{name}.{key} is unknown; use one of {', '.join(sorted(known))}"
            )
    return replace(method, **settings)
