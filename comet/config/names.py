# SPDX-License-Identifier: Apache-2.0
"""Names that must be known ones, and what was probably meant."""

import difflib
from collections.abc import Collection

from comet.errors import UserError


def check_known(names: Collection[str], known: Collection[str], where: str, what: str) -> None:
    """Refuse names that are not among the known ones.

    Args:
        names, known: those of the configuration, and all that there are.
        where: the key that holds them.
        what: what they name.

    Raises:
        UserError: the first unknown name.
    """
    for name in names:
        if name not in known:
            raise UserError(f"{where} names the unknown {what} {name}{suggestion(name, known)}")


def suggestion(name: str, known: Collection[str]) -> str:
    """``; did you mean x?`` or the list of what is allowed."""
    near = difflib.get_close_matches(str(name), sorted(known), n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; use one of {', '.join(sorted(known))}"
