# SPDX-License-Identifier: Apache-2.0
"""The methods by the name that records and tables give them."""

from dataclasses import fields, replace

from comet.errors import UserError
from comet.methods.linear import ActivationGrid
from comet.methods.method import Method
from comet.methods.rtn import RoundToNearest

TOKEN_INT8 = ActivationGrid(bits=8)

METHODS: dict[str, Method] = {
    "rtn-w8a8": RoundToNearest(
        "W8A8 round-to-nearest",
        weight_bits=8,
        weight_group=None,
        activations=TOKEN_INT8,
        calibrated=False,
    ),
    "rtn-w4a16": RoundToNearest("W4A16 g128 round-to-nearest", calibrated=False),
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
