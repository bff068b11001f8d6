# SPDX-License-Identifier: Apache-2.0
"""Evaluate one row of an accuracy table on one model and text."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from comet.accuracy.attention import use_kv4
from comet.accuracy.perplexity import metric_name, perplexity, window_losses
from comet.accuracy.rows import Row, row_named
from comet.data.windows import parse_windows, text_windows
from comet.errors import UserError
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.model import load_checkpoint_model
from comet.measurements import Measurement, provenance
from comet.methods.pipeline import load_method_model, method_facts
from comet.models.arithmetic import exact_products, scoring_type
from comet.models.folder import ModelFolder
from comet.speed.gpu_environment import device_environment

LAYER_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate and on which text.

    Attributes:
        backend: row name (``comet.accuracy.rows``).
        model: model id for the record.
        model_folder: folder of the 16-bit model.
        checkpoint: folder of the FMPQ checkpoint or of the method's quantized model, for rows that
            need one.
        dataset, split: name of the text and which part of it, for the record.
        text: JSON Lines file of passages.
        joiner: what joins passages into one text.
        context: tokens of a window.
        windows: window numbers, for instance ``"0-5"``.
        integer_windows: leading windows that are scored again by the integer reference, to check
            that fake quantization says the same; 0 to leave it out.
        device: torch device.
        dtype: arithmetic of the 16-bit parts (``comet.models.arithmetic``); ``float32`` on a CPU.
    """

    backend: str
    model: str
    model_folder: Path
    dataset: str
    split: str
    text: Path
    context: int
    windows: str
    checkpoint: Path | None = None
    joiner: str = "\n\n"
    integer_windows: int = 0
    device: str = "cpu"
    dtype: str = "float32"


def evaluate_row(evaluation: Evaluation, config: dict, seed: int) -> list[Measurement]:
    """Perplexity of one row; one record.

    Raises:
        UserError: a checkpoint is missing, the text is too short, or perplexity is not finite.
    """
    row = row_named(evaluation.backend)
    source = provenance(config, seed)
    torch.manual_seed(seed)
    windows = text_windows(
        ModelFolder(evaluation.model_folder).tokenizer(),
        evaluation.text,
        evaluation.joiner,
        evaluation.context,
        parse_windows(evaluation.windows),
    )
    model = build_model(evaluation, row)
    losses = window_losses(model, windows, f"{evaluation.model} {evaluation.backend}")
    check = _integer_check(model, windows, losses, evaluation)
    value = perplexity(losses, evaluation.context)
    record = Measurement(
        kind="accuracy",
        case=_case(evaluation),
        metric=metric_name(evaluation.context),
        unit="1",
        backend=evaluation.backend,
        samples=[value],
        method={
            "what": "exp of the mean negative log-likelihood per token, first token of each window "
            "not scored, no BOS, windows from the start of the joined text",
            "path": "fake quantization",
            "arithmetic": evaluation.dtype,
            "row": row.label,
            "quantizer": method_facts(evaluation.checkpoint) if row.method else None,
            "window_losses": losses,
            "integer_check": check,
        },
        environment=device_environment(evaluation.device),
        provenance=source,
    )
    return [_judged(record, check)]


def _judged(record: Measurement, check: dict | None) -> Measurement:
    """The record, or a failed one when fake quantization and the integer reference disagree."""
    if check is None or check["layer_difference"] <= check["layer_tolerance"]:
        return record
    return replace(
        record,
        samples=[],
        median=None,
        status="failed",
        reason=f"fake quantization and the integer reference differ by "
        f"{check['layer_difference']:.2e} in a layer, allowed {check['layer_tolerance']:.0e}",
    )


def _case(evaluation: Evaluation) -> dict:
    return {
        "model": evaluation.model,
        "dataset": evaluation.dataset,
        "split": evaluation.split,
        "context": evaluation.context,
        "windows": evaluation.windows,
        "task": None,
        "limit": None,
    }


def build_model(evaluation: Evaluation, row: Row, path: str = "fake") -> torch.nn.Module:
    """The model of a row, ready to be scored."""
    dtype = scoring_type(evaluation.dtype)
    source = row.checkpoint or row.method
    if source and evaluation.checkpoint is None:
        raise UserError(
            f"row {evaluation.backend} needs the quantized model {source}; "
            "run the quantize target first"
        )
    folder = ModelFolder(evaluation.model_folder)
    if row.checkpoint:
        act_scale = {"none": None, "token_block": "token_block"}.get(row.activations, "options")
        model = load_checkpoint_model(
            evaluation.checkpoint, dtype, evaluation.device, act_scale=act_scale, path=path
        )
    elif row.method:
        model = load_method_model(evaluation.checkpoint, folder, dtype, evaluation.device)
    else:
        model = folder.load(dtype, evaluation.device)
    if row.kv is not None:
        use_kv4(model, row.kv)
    return model


def _integer_check(
    model: torch.nn.Module, windows: torch.Tensor, losses: list[float], evaluation: Evaluation
) -> dict | None:
    """Compare fake quantization with exact integers; None where nothing is integer.

    Each layer is compared on the same inputs (relative error of its output): that is judged. The
    perplexity of the leading windows is also computed by integers alone and reported beside the
    other. It cannot be judged: rounding to 4 bits is chaotic, and a relative change of 1e-7 in the
    embedding, the size of one fp32 rounding, moves the perplexity of one window by percents.
    """
    layers = [m for m in model.modules() if isinstance(m, W4AxLinear) and m.act_scale]
    count = min(evaluation.integer_windows, len(windows))
    if not layers or not count:
        return None
    with exact_products():
        differences = _layer_differences(model, layers, windows[:1])
    for layer in layers:
        layer.path = "integer"
    integer_losses = window_losses(model, windows[:count], "integer reference")
    exact = perplexity(integer_losses, evaluation.context)
    fake = perplexity(losses[:count], evaluation.context)
    return {
        "windows": count,
        "layer_difference": max(differences),
        "layer_tolerance": LAYER_TOLERANCE,
        "ppl_fake": fake,
        "ppl_integer": exact,
        "model_difference": abs(exact / fake - 1),
    }


def _layer_differences(
    model: torch.nn.Module, layers: list[W4AxLinear], windows: torch.Tensor
) -> list[float]:
    """Relative error |integer - fake| / |fake| of every call of every layer, on equal inputs."""
    differences = []

    def compare(layer: W4AxLinear, inputs: tuple, fake: torch.Tensor) -> None:
        layer.path = "integer"
        exact = W4AxLinear.forward(layer, inputs[0])
        layer.path = "fake"
        differences.append(float((exact - fake).norm() / fake.norm().clamp(min=1e-30)))

    hooks = [layer.register_forward_hook(compare) for layer in layers]
    try:
        window_losses(model, windows, "layers by integers")
    finally:
        for hook in hooks:
            hook.remove()
    return differences
