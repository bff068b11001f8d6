# SPDX-License-Identifier: Apache-2.0
"""The rows of the accuracy tables: which part of the model each backend name quantizes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from comet.errors import UserError
from comet.methods.rtn import rtn_w4a16, rtn_w8a8

CHECKPOINTS = ("natural", "fmpq")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        label: bits and method as tables print them.
        checkpoint: FMPQ checkpoint it runs on: ``natural`` (channels in natural order, no INT8),
            ``fmpq`` (permuted), or None for the 16-bit model.
        activations: ``none`` (16 bit), ``token_block`` (paper-faithful scales), or ``options``
            (the scale mode that the checkpoint was made for).
        replace: makes the quantized form of a linear layer, for methods without a checkpoint.
        kv4: K and V are kept in 4 bit.
    """

    label: str
    checkpoint: str | None = None
    activations: str = "none"
    replace: Callable[[nn.Linear], nn.Module] | None = None
    kv4: bool = False


ROWS = {
    "w16a16": Row("W16A16"),
    "w16a16-kv4": Row("W16A16KV4", kv4=True),
    "rtn-w8a8": Row("W8A8 round-to-nearest", replace=rtn_w8a8),
    "rtn-w4a16": Row("W4A16 round-to-nearest", replace=rtn_w4a16),
    "fmpq-w4a16": Row("W4A16, FMPQ's weights", checkpoint="natural"),
    "fmpq-w4a4": Row("W4A4 token-block", checkpoint="natural", activations="token_block"),
    "fmpq-w4ax": Row("W4Ax FMPQ", checkpoint="fmpq", activations="options"),
    "fmpq-w4axkv4": Row("W4AxKV4 FMPQ", checkpoint="fmpq", activations="options", kv4=True),
}


def row_named(backend: str) -> Row:
    """The row of a backend name.

    Raises:
        UserError: there is none.
    """
    if backend not in ROWS:
        raise UserError(f"accuracy row {backend!r} is unknown; use one of {', '.join(ROWS)}")
    return ROWS[backend]
