# SPDX-License-Identifier: Apache-2.0
"""The rows of the accuracy tables: which part of the model each backend name quantizes."""

from dataclasses import dataclass

from comet.accuracy.kv_quantization import KVQuantization
from comet.errors import UserError
from comet.methods.registry import METHODS


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        label: bits and method as tables print them.
        checkpoint: FMPQ checkpoint it runs on: ``natural`` (channels in natural order, no INT8),
            ``fmpq`` (permuted), ``fmpq-plus`` (with what goes beyond the paper), or None.
        activations: of an FMPQ checkpoint: ``none`` (16 bit), ``token_block`` (paper-faithful
            scales), or ``options`` (the scale mode that the checkpoint was made for).
        method: another method (``comet.methods.registry``) whose quantized model it runs on.
        kv: how K and V are kept, None for 16 bit.
    """

    label: str
    checkpoint: str | None = None
    activations: str = "none"
    method: str | None = None
    kv: KVQuantization | None = None


KV4 = KVQuantization()
ROWS = {
    "w16a16": Row("W16A16"),
    "w16a16-kv4": Row("W16A16KV4", kv=KV4),
    "fmpq-w4a16": Row("W4A16, FMPQ's weights", checkpoint="natural"),
    "fmpq-w4a4": Row("W4A4 token-block", checkpoint="natural", activations="token_block"),
    "fmpq-w4ax": Row("W4Ax FMPQ", checkpoint="fmpq", activations="options"),
    "fmpq-w4axkv4": Row("W4AxKV4 FMPQ", checkpoint="fmpq", activations="options", kv=KV4),
    "fmpq-token-block-w4ax": Row(
        "W4Ax FMPQ, token-block scales", checkpoint="fmpq", activations="token_block"
    ),
    "fmpq-plus-w4ax": Row("W4Ax FMPQ+", checkpoint="fmpq-plus", activations="options"),
    "fmpq-plus-w4axkv4": Row(
        "W4AxKV4 FMPQ+", checkpoint="fmpq-plus", activations="options", kv=KV4
    ),
}
# A method that says how it keeps K and V has a second row, with its name plus kv4.
ROWS |= {name: Row(method.label, method=name) for name, method in METHODS.items()}
ROWS |= {
    f"{name}kv4": Row(f"{method.label}, KV4", method=name, kv=method.kv)
    for name, method in METHODS.items()
    if method.kv is not None
}


def row_named(backend: str) -> Row:
    """The row of a backend name.

    Raises:
        UserError: there is none.
    """
    if backend not in ROWS:
        raise UserError(f"accuracy row {backend!r} is unknown; use one of {', '.join(ROWS)}")
    return ROWS[backend]
