# SPDX-License-Identifier: Apache-2.0
"""Windows of tokens cut out of one long text."""

from collections.abc import Sequence
from pathlib import Path

import torch

from comet.data.read import joined_text
from comet.data.window_numbers import parse_windows
from comet.errors import UserError

__all__ = ["parse_windows", "text_windows", "token_windows"]


def text_windows(
    tokenizer, path: Path, joiner: str, context: int, windows: Sequence[int] | None
) -> torch.Tensor:
    """Tokenize a prepared text as one string, without BOS, and cut windows out of it.

    Args:
        tokenizer: Hugging Face tokenizer.
        path: JSON Lines file of passages.
        joiner: what joins passages.
        context: tokens of a window.
        windows: window numbers; None for all whole windows of the text.

    Returns:
        int64 [number of windows, context].

    Raises:
        UserError: the text is too short.
    """
    text = joined_text(path, joiner)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0]
    return token_windows(ids, context, windows, str(path))


def token_windows(
    ids: torch.Tensor, context: int, windows: Sequence[int] | None, where: str = "the text"
) -> torch.Tensor:
    """Cut windows out of one token sequence; window w starts at token ``w * context``.

    Args:
        ids: int64 [tokens].
        context: tokens of a window.
        windows: window numbers; None for all whole windows.
        where: name of the text in an error.

    Returns:
        int64 [number of windows, context].

    Raises:
        UserError: the sequence is too short.
    """
    available = ids.numel() // context
    if windows is None:
        windows = range(available)
    if not windows or max(windows) >= available:
        raise UserError(
            f"{where} holds {available} windows of {context} tokens, window "
            f"{max(windows, default=0)} was asked for; ask for fewer or shorter windows"
        )
    return torch.stack([ids[w * context : (w + 1) * context] for w in windows])
