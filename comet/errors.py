# SPDX-License-Identifier: Apache-2.0
"""The one exception that users are meant to read."""


class UserError(Exception):
    """Bad input or a missing resource.

    The message is one line: what is wrong, where, and what to do about it. Entry points print it
    without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
