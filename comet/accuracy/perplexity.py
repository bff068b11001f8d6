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


def metric_name(context: int) -> str:
    """Name of the metric for windows of ``context`` tokens."""
    return f"ppl_token_{context}"


@torch.no_grad()
def window_losses(
    model: torch.nn.Module, windows: torch.Tensor, description: str = "", quiet: bool | None = None
) -> list[float]:
    """Sum of negative log-likelihoods of the scored tokens of each window (all but the first).

    Args:
        model: causal language model.
        windows: int64 [W, context].
        description: label of the progress bar.
        quiet: no progress bar; by default it shows on a terminal only.
    """
    device = next(model.parameters()).device
    losses = []
    for window in tqdm(windows, desc=description, unit="window", disable=quiet):
        ids = window[None].to(device)
        logits = model(ids, use_cache=False).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
        losses.append(float(loss))
    return losses


def perplexity(losses: Sequence[float], context: int) -> float:
    """exp of the mean loss per scored token.

    Raises:
        UserError: the loss is not finite.
    """
    mean = sum(losses) / (len(losses) * (context - 1))
    if not math.isfinite(mean):
        raise UserError("perplexity is not finite; the model overflows in this precision")
    return math.exp(mean)
