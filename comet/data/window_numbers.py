# SPDX-License-Identifier: Apache-2.0
"""Numbers of windows, as configurations and records write them."""

from comet.errors import UserError


def parse_windows(text: str) -> list[int] | None:
    """``"0-5"`` or ``"0-5,8"`` to window numbers, in order and without repeats; ``all`` to None.

    Raises:
        UserError: not of that form.
    """
    if text == "all":
        return None
    numbers: list[int] = []
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise UserError(
                f"windows {text!r} is not understood; write for instance 0-5 or 0-5,8, or all"
            )
        numbers.extend(range(int(first), int(last) + 1))
    return sorted(set(numbers))
