# SPDX-License-Identifier: Apache-2.0
"""Token perplexity over fixed windows of one concatenated text.

This is the perplexity of the GPTQ, SmoothQuant and COMET line of work (negative log-likelihood per
token), not lm-eval's word perplexity; the two are never mixed. The context length is part of the
metric's name.
"""

import math
from collections.abc import Sequence

import torch
from tqdm import tqdm

from comet.errors import UserError

# On a GPU; 2 GiB in float32.
LOGITS_AT_ONCE = 2**29


def metric_name(context: int) -> str:
    """Name of the metric for windows of ``context`` tokens."""
    return f"ppl_token_{context}"


@torch.no_grad()
def window_losses(
    model: torch.nn.Module,
    windows: torch.Tensor,
    description: str = "",
    skips: Sequence[int] | None = None,
    quiet: bool | None = None,
) -> list[float]:
    """Sum of negative log-likelihoods of the scored tokens of each window.

    Args:
        model: causal language model.
        windows: int64 [W, context].
        description: label of the progress bar.
        skips: leading tokens of each window that are not scored, at least 1; by default 1.
        quiet: no progress bar; by default it shows on a terminal only.
    """
    device = next(model.parameters()).device
    size = _windows_at_once(model, windows.shape[1], device)
    skips = skips if skips is not None else [1] * len(windows)
    losses = []
    for first in tqdm(range(0, len(windows), size), desc=description, unit="batch", disable=quiet):
        part = slice(first, first + size)
        ids = windows[part].to(device)
        scored = model(ids, use_cache=False).logits
        for own, logits, skip in zip(ids, scored, skips[part], strict=True):
            scores = logits[skip - 1 : -1].float()
            losses.append(torch.nn.functional.cross_entropy(scores, own[skip:], reduction="sum"))
    return torch.stack(losses).cpu().tolist()


def _windows_at_once(model: torch.nn.Module, context: int, device: torch.device) -> int:
    """One on a CPU; on a GPU, which small batches leave idle, as many as its memory bears."""
    if device.type == "cpu":
        return 1
    return max(1, LOGITS_AT_ONCE // (context * model.config.vocab_size))


def perplexity(losses: Sequence[float], context: int) -> float:
    """exp of the mean loss per scored token.

    Raises:
        UserError: the loss is not finite.
    """
    mean = sum(losses) / (len(losses) * (context - 1))
    if not math.isfinite(mean):
        raise UserError("perplexity is not finite; the model overflows in this precision")
    return math.exp(mean)
