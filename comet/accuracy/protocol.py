# SPDX-License-Identifier: Apache-2.0
"""How the way of scoring changes a perplexity: context, overlap, BOS, joiner, tokens or words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from comet.accuracy.evaluate import build_model
from comet.accuracy.perplexity import metric_name, window_losses
from comet.accuracy.rows import row_named
from comet.data.read import joined_text
from comet.data.windows import token_windows
from comet.measurements import Measurement, provenance
from comet.models.folder import ModelFolder
from comet.speed.gpu_environment import device_environment

JOINERS = ("\n\n", "\n", "")


@dataclass(frozen=True)
class Scoring:
    """One way to score a text.

    Attributes:
        choice: what differs from the usual way, and its value, as tables print them.
        context: tokens of a window.
        overlap: tokens that a window shares with the one before, where they were scored.
        bos: every window starts with the beginning-of-text token, so that its first text token is
            scored too.
        joiner: what stands between passages; None for the text's own.
    """

    choice: tuple[str, str]
    context: int
    overlap: int = 0
    bos: bool = False
    joiner: str | None = None


@dataclass(frozen=True)
class Audit:
    """What is scored in every way.

    Attributes:
        backend, model, model_folder, checkpoint, device, dtype: as in ``Evaluation``.
        dataset, text, joiner: the text (its test part).
        context: tokens of a window in the usual way.
        contexts: further window lengths.
        tokens: so many leading tokens are scored, in whole windows, at least one.
    """

    backend: str
    model: str
    model_folder: Path
    dataset: str
    text: Path
    context: int
    contexts: tuple[int, ...]
    tokens: int
    joiner: str = "\n\n"
    checkpoint: Path | None = None
    device: str = "cpu"
    dtype: str = "float32"


def ways(audit: Audit, has_bos: bool) -> list[Scoring]:
    """The usual way first, then what differs from it in one choice."""
    usual = audit.context
    found = [Scoring(("usual", f"context {usual}, no overlap, no BOS"), usual)]
    found += [
        Scoring(("context", str(context)), context)
        for context in audit.contexts
        if context != usual
    ]
    half = usual // 2
    found.append(Scoring(("overlap", f"{half} tokens, scored once"), usual, overlap=half))
    if has_bos:
        found.append(Scoring(("BOS", "before every window"), usual, bos=True))
    found += [
        Scoring(("joiner", repr(joiner)), usual, joiner=joiner)
        for joiner in JOINERS
        if joiner != audit.joiner
    ]
    return found


def audit_protocol(audit: Audit, config: dict, seed: int) -> list[Measurement]:
    """Score one row in every way; a record per token and one per word for each.

    Raises:
        UserError: the text is too short for a context, or a quantized model is missing.
    """
    source = provenance(config, seed)
    tokenizer = ModelFolder(audit.model_folder).tokenizer()
    model = build_model(audit, row_named(audit.backend))
    records = []
    for way in ways(audit, tokenizer.bos_token_id is not None):
        windows = _windows(audit, way, tokenizer)
        skips = [max(1, way.overlap) if number else 1 for number in range(len(windows))]
        losses = window_losses(model, windows, f"{way.choice[0]} {way.choice[1]}", skips)
        scored = sum(way.context - skip for skip in skips)
        words = sum(
            len(tokenizer.decode(window[skip:]).split())
            for window, skip in zip(windows, skips, strict=True)
        )
        for metric, count in ((metric_name(way.context), scored), ("ppl_word", words)):
            value = math.exp(sum(losses) / count)
            records.append(_record(audit, way, metric, value, losses, (scored, words), source))
    return records


def _windows(audit: Audit, way: Scoring, tokenizer) -> torch.Tensor:
    text = joined_text(audit.text, audit.joiner if way.joiner is None else way.joiner)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0]
    own = way.context - int(way.bos)
    step = own - way.overlap
    numbers = range(max(1, (audit.tokens - way.overlap) // step))
    token_windows(ids, len(numbers) * step + way.overlap, [0], str(audit.text))
    windows = torch.stack([ids[n * step : n * step + own] for n in numbers])
    if way.bos:
        first = torch.full((len(windows), 1), tokenizer.bos_token_id)
        windows = torch.cat((first, windows), dim=1)
    return windows


def _record(
    audit: Audit,
    way: Scoring,
    metric: str,
    value: float,
    losses: Sequence[float],
    counts: tuple[int, int],
    source: dict,
) -> Measurement:
    last = len(losses) - 1
    return Measurement(
        kind="accuracy",
        case={
            "model": audit.model,
            "dataset": audit.dataset,
            "split": "test",
            "context": way.context,
            "windows": f"0-{last}" if last else "0",
            "task": None,
            "limit": None,
            "protocol": {"choice": way.choice[0], "value": way.choice[1]},
        },
        metric=metric,
        unit="1",
        backend=audit.backend,
        samples=[value],
        method={
            "window_losses": list(losses),
            "scored_tokens": counts[0],
            "words": counts[1],
            "what": "exp of the summed negative log-likelihood over scored tokens, or over words: "
            "white-space separated, of the decoded scored text",
            "arithmetic": audit.dtype,
            "path": "fake quantization",
        },
        environment=device_environment(audit.device),
        provenance=source,
    )
