# SPDX-License-Identifier: Apache-2.0
"""What each choice that the paper leaves open is worth, on the model at hand."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from comet.accuracy.perplexity import metric_name, perplexity, window_losses
from comet.data.windows import parse_windows, text_windows
from comet.fmpq.end_loss import token_weights
from comet.fmpq.migration import migrate
from comet.fmpq.options import OUTLIER_METRICS, PLUS, FMPQOptions
from comet.fmpq.pipeline import Calibration, put_quantized, quantize_layer
from comet.fmpq.plan import InputPlan, watch_layer
from comet.measurements import Measurement, environment, provenance
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream

# Each choice differs from the configured options in what it names.
CHOICES: tuple[dict, ...] = (
    {},
    {"outlier_metric": "max"},
    {"outlier_metric": "p99"},
    {"outlier_metric": "mean_square"},
    {"outlier_rule": "threshold"},
    {"channel_order": "moved"},
    {"int8_share": 0.0},
    {"int8_share": 0.4},
    {"act_scale": "token_block"},
    {"act_scale": "token"},
    {"act_zero_point": True},
    {"act_noise": 0.0},
    {"act_noise": 1.0},
    {"weight_rounding": "gptq", "end_loss": True},
    {"migration": 0.5},
    {"act_hadamard": True, "channel_order": "moved"},
    PLUS,
    PLUS | {"act_noise": 0.0},
    PLUS | {"channel_order": "sorted"},
    PLUS | {"migration": 0.5},
    {"weight_scale": "group_fp"},
    {"weight_symmetric": True},
    {"weight_clip": "learned"},
    {"weight_clip": "mse"},
    {"weight_clip": "none"},
    {"weight_rounding": "gptq"},
    {"weight_rounding": "nearest"},
    {"weight_rounding": "nearest", "weight_clip": "learned"},
    {"weight_rounding": "nearest", "weight_clip": "mse"},
    {"weight_rounding": "nearest", "weight_clip": "none"},
)
# A relative change of the embedding of the size of one fp32 rounding: what it moves is noise.
NOISE = {"noise": "embedding changed by 1e-7"}


@dataclass(frozen=True)
class Comparison:
    """The model, its calibration and the scored text.

    Attributes:
        model: model id for the records.
        folder: the 16-bit model.
        calibration: text for the channel statistics.
        dataset, split, text, joiner, context, windows: the scored text, as in
            ``comet.accuracy.evaluate.Evaluation``.
    """

    model: str
    folder: Path
    calibration: Calibration
    dataset: str
    split: str
    text: Path
    context: int
    windows: str
    joiner: str = "\n\n"


def compare_choices(
    comparison: Comparison, options: FMPQOptions, config: dict, seed: int, device: str = "cpu"
) -> list[Measurement]:
    """Perplexity of FMPQ W4Ax under each choice; statistics are gathered once, and once more with
    weights of the tokens for the choices that ask for them.

    Returns:
        One record a choice; ``case["options"]`` holds what differs from ``options``. The last one
        repeats the first on an embedding changed by one rounding, which shows what is noise.
    """
    source = provenance(config, seed)
    folder = ModelFolder(comparison.folder)
    choices = distinct_choices(options)
    watched = {}
    for end_loss in {replace(options, **choice).end_loss for choice in choices}:
        watched[end_loss] = _watch(folder, comparison.calibration, device, end_loss)
    windows = text_windows(
        folder.tokenizer(),
        comparison.text,
        comparison.joiner,
        comparison.context,
        parse_windows(comparison.windows),
    )
    # Weights that ask for gradients would keep every variant alive through autograd.
    model = folder.load(torch.float32, device).requires_grad_(False)
    originals = deepcopy(list(folder.family.layers_of(model)))

    def score(choice: dict) -> Measurement:
        chosen = replace(options, **choice, absorb_permutation=False)
        _quantize_in_place(model, folder, originals, watched[chosen.end_loss], chosen)
        return _record(
            comparison, choice, chosen, window_losses(model, windows, str(choice)), source
        )

    records = [score(choice) for choice in choices]
    score({})
    _disturb(model.get_input_embeddings(), seed)
    losses = window_losses(model, windows, "noise")
    return [*records, _record(comparison, NOISE, options, losses, source)]


def distinct_choices(options: FMPQOptions) -> list[dict]:
    """The configured options, then every choice that gives options of its own."""
    by_options = {}
    for choice in CHOICES:
        by_options.setdefault(replace(options, **choice), choice)
    return list(by_options.values())


def _watch(
    folder: ModelFolder, calibration: Calibration, device: str, end_loss: bool
) -> dict[int, dict[str, InputPlan]]:
    """Channel statistics of every linear input, by layer and input name."""
    windows = text_windows(
        folder.tokenizer(),
        calibration.path,
        calibration.joiner,
        calibration.context,
        range(calibration.windows),
    )
    weights = token_weights(folder, windows, device) if end_loss else None
    stream = LayerStream(folder, windows, device)
    return {
        index: watch_layer(
            layer,
            f"{folder.family.layers}.{index}",
            folder.family,
            partial(run, advance=True),
            windows.numel(),
            metrics=OUTLIER_METRICS,
            correlations=True,
            weights=weights,
        )
        for index, layer, run in stream
    }


def _quantize_in_place(
    model: torch.nn.Module,
    folder: ModelFolder,
    originals: list[torch.nn.Module],
    watched: dict[int, dict[str, InputPlan]],
    options: FMPQOptions,
) -> None:
    layers = folder.family.layers_of(model)
    for index, original in enumerate(originals):
        layer, plans = deepcopy(original), watched[index]
        if options.migration:
            plans = migrate(layer, folder.family, plans, options.migration)
        for plan in plans.values():
            plan.decide(options, "fmpq")
        packed = quantize_layer(layer, folder.family, plans, options)
        put_quantized(layer, packed, options, options.act_scale)
        layers[index] = layer


@torch.no_grad()
def _disturb(embedding: torch.nn.Embedding, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(embedding.weight.shape, generator=generator).to(embedding.weight)
    embedding.weight.mul_(1 + 1e-7 * noise)


def _record(
    comparison: Comparison,
    choice: dict,
    options: FMPQOptions,
    losses: list[float],
    source: dict,
) -> Measurement:
    return Measurement(
        kind="accuracy",
        case={
            "model": comparison.model,
            "dataset": comparison.dataset,
            "split": comparison.split,
            "context": comparison.context,
            "windows": comparison.windows,
            "task": None,
            "limit": None,
            "options": choice,
        },
        metric=metric_name(comparison.context),
        unit="1",
        backend="fmpq-w4ax",
        samples=[perplexity(losses, comparison.context)],
        method={"options": options.as_dict(), "window_losses": losses, "path": "fake quantization"},
        environment=environment(),
        provenance=source,
    )
