# SPDX-License-Identifier: Apache-2.0
"""FMPQ on a whole model, one decoder layer in memory at a time (paper, section 3.2)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from comet.data.windows import text_windows
from comet.errors import UserError
from comet.files import atomic_path, write_json
from comet.fmpq.end_loss import token_weights
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.memory import PeakMeter, run_records
from comet.fmpq.migration import migrate
from comet.fmpq.options import FMPQOptions
from comet.fmpq.plan import CHECKPOINTS, InputPlan, watch_layer
from comet.fmpq.shares import METRICS, layer_shares
from comet.fmpq.weights import quantize_weight
from comet.formats.blocks import PADDING, natural_permutation
from comet.formats.checkpoint import CheckpointWriter
from comet.formats.weights import PackedWeight
from comet.measurements import Measurement, provenance
from comet.models.arithmetic import tensor_type
from comet.models.families import Family
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream
from comet.speed.gpu_environment import device_environment

SAMPLED_LAYERS = 3


@dataclass(frozen=True)
class Calibration:
    """Calibration text, cut into windows from its start.

    Attributes:
        path: JSON Lines file of passages.
        dataset: its name, for records.
        windows, context: number and length in tokens of the windows.
        joiner: what joins passages.
    """

    path: Path
    dataset: str
    windows: int
    context: int
    joiner: str = "\n\n"


def quantize_model(
    folder: ModelFolder,
    calibration: Calibration,
    out: Path,
    options: FMPQOptions,
    checkpoint: str,
    model: str,
    config: dict,
    seed: int,
    device: str = "cpu",
    dtype: str = "float32",
    weights: Mapping[str, torch.Tensor] | None = None,
) -> list[Measurement]:
    """Quantize a model into the folder ``out``, which appears whole or not at all.

    Args:
        folder: the 16-bit model.
        calibration: text for the channel statistics.
        out: folder of the checkpoint; it also holds ``layers.json`` (shares by layer) and
            ``statistics.safetensors`` (for figures 3 and 4).
        options: the choices that the paper leaves open.
        checkpoint: ``fmpq`` or ``fmpq-plus`` (permuted, mixed precision; the options make the
            difference) or ``natural`` (channels in natural order, INT4 weights, no INT8 block: what
            the W4A16 and W4A4 rows run on).
        model: model id for the records.
        config, seed: for provenance.
        device, dtype: where and in which type the 16-bit layers run.
        weights: what ``token_weights`` gives for the calibration, where ``options.end_loss`` asks
            for it; None: computed here.

    Returns:
        Three records a layer: outlier-channel, INT8-block and W4A4-MAC share, in percent; then
        ``peak_memory`` and ``quantize_time`` of the whole model, whose layer is ``all``.

    Raises:
        UserError: calibration text too short, or an activation that is not finite.
    """
    if checkpoint not in CHECKPOINTS:
        raise UserError(f"checkpoint {checkpoint!r} is not one of {', '.join(CHECKPOINTS)}")
    source = provenance(config, seed)
    torch.manual_seed(seed)
    meter = PeakMeter(device)
    tokenizer = folder.tokenizer()
    windows = text_windows(
        tokenizer,
        calibration.path,
        calibration.joiner,
        calibration.context,
        range(calibration.windows),
    )
    weighted = options.end_loss and options.correlations
    if weighted and weights is None:
        weights = token_weights(folder, windows, device, tensor_type(dtype))
    stream = LayerStream(folder, windows, device, tensor_type(dtype))
    with atomic_path(out) as temporary:
        temporary.mkdir(parents=True)
        writer = CheckpointWriter(temporary)
        shares = _quantize_layers(
            folder.family,
            stream,
            windows.numel(),
            options,
            checkpoint,
            writer,
            weights if weighted else None,
        )
        _write_rest(folder, writer)
        facts = {"checkpoint": checkpoint, "calibration": calibration.dataset, "seed": seed}
        writer.finish(folder.config.to_dict(), options.as_dict(), facts)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / "layers.json", {"model": model, "layers": shares})
    meter.stop()
    run = {
        "options": options.as_dict(),
        "calibration": {
            "dataset": calibration.dataset,
            "windows": calibration.windows,
            "context": calibration.context,
        },
    }
    common = {"environment": device_environment(device), "provenance": source}
    whole = run_records(
        meter,
        stream.largest_layer,
        stream.hidden.nbytes,
        {"device": device, "dtype": dtype, "layers": stream.layer_count, **run},
        case=_whole_case(folder, model, checkpoint),
        **common,
    )
    return [*_share_records(shares, model, checkpoint, run, **common), *whole]


def _whole_case(folder: ModelFolder, model: str, checkpoint: str) -> dict:
    """Case of a record of the whole model; a model that was cut short says so."""
    cut = {key: n for key, n in folder.description.get("source", {}).items() if key == "layers"}
    return {"model": model, "layer": "all", "method": checkpoint, **cut}


def _quantize_layers(
    family: Family,
    stream: LayerStream,
    tokens: int,
    options: FMPQOptions,
    checkpoint: str,
    writer: CheckpointWriter,
    weights: Mapping[str, torch.Tensor] | None,
) -> dict[str, dict]:
    """Quantize layer after layer; shares by layer."""
    shares, arrays, facts = {}, {}, {}
    sampled, mixed = _sampled_layers(stream.layer_count), checkpoint != "natural"
    for index, layer, run in stream:
        name = f"{family.layers}.{index}"
        plans = watch_layer(
            layer,
            name,
            family,
            partial(run, advance=not options.sequential),
            tokens,
            metrics=(options.outlier_metric, "max"),
            correlations=options.correlations,
            weights=weights,
        )
        if options.migration and mixed:
            plans = migrate(layer, family, plans, options.migration)
        for plan in plans.values():
            plan.decide(options, checkpoint)
        packed = quantize_layer(layer, family, plans, options)
        shares[name] = layer_shares(plans, packed, options)
        _write_layer(layer, index, name, family, packed, writer)
        if options.sequential:
            put_quantized(layer, packed, options, options.act_scale if mixed else None)
            stream.advance()
        for input_name, plan in plans.items():
            _keep_arrays(f"{name}.{input_name}", plan, options, index in sampled, arrays, facts)
        # The next layer is loaded before these names are bound again.
        del plans, plan, packed
    with atomic_path(writer.folder / "statistics.safetensors") as temporary:
        save_file(arrays, temporary, metadata={"layers": json.dumps(facts)})
    return shares


def quantize_layer(
    layer: torch.nn.Module, family: Family, plans: Mapping[str, InputPlan], options: FMPQOptions
) -> dict[str, PackedWeight]:
    """Quantize every linear of a decoder layer; changes the layer's weights where it absorbs.

    The permutation of the MLP's second input is moved into the output rows of the linears before
    it: only elementwise operations lie between them, so the function stays the same and the
    gather disappears. Inputs that follow a norm are gathered where they are quantized.

    Returns:
        Packed weights by linear name inside the layer.
    """
    permutations = {name: plan.permutation for name, plan in plans.items()}
    last = plans["mlp_out"]
    if options.absorb_permutation and absorbable(last.permutation):
        absorb_into_rows(layer, family, last.permutation)
        permutations["mlp_out"] = natural_permutation(last.layout)
    packed = {}
    for name, plan in plans.items():
        for linear_name in plan.group.linears:
            packed[linear_name] = quantize_weight(
                layer.get_submodule(linear_name).weight,
                *_in_stored_order(plan, permutations[name]),
                options,
                plan.noise,
            )
    return packed


def put_quantized(
    layer: torch.nn.Module,
    packed: Mapping[str, PackedWeight],
    options: FMPQOptions,
    act_scale: str | None,
) -> None:
    """Put quantized linears in the place of a decoder layer's own.

    Args:
        act_scale: scale mode of activations, None to leave them in 16 bit.
    """
    for name, weight in packed.items():
        bias = layer.get_submodule(name).bias
        quantized = W4AxLinear(weight, bias, act_scale, options.act_zero_point)
        layer.set_submodule(name, quantized)


def absorbable(permutation: torch.Tensor) -> bool:
    """Rows can take over a permutation when it has no padding."""
    return not bool((permutation == PADDING).any())


def absorb_into_rows(layer: torch.nn.Module, family: Family, permutation: torch.Tensor) -> None:
    """Reorder output rows (and biases) of the MLP's first linears and the columns of its second."""
    order = permutation.long()
    for name in family.absorbs:
        linear = layer.get_submodule(name)
        linear.weight.data = linear.weight.data[order]
        if linear.bias is not None:
            linear.bias.data = linear.bias.data[order]
    (second,) = family.inputs[-1].linears
    linear = layer.get_submodule(second)
    linear.weight.data = linear.weight.data[:, order]


def _in_stored_order(plan: InputPlan, permutation: torch.Tensor) -> tuple:
    """(second moment, layout, permutation) for the channel order that the weight has now."""
    moment = plan.statistics.second_moment()
    if not torch.equal(permutation, plan.permutation):
        order = plan.permutation.long().to(moment.device)
        moment = moment[order] if moment.dim() == 1 else moment[order][:, order]
    return moment, plan.layout, permutation


def _write_layer(
    layer: torch.nn.Module,
    index: int,
    name: str,
    family: Family,
    packed: dict[str, PackedWeight],
    writer: CheckpointWriter,
) -> None:
    quantized = {f"{linear}.weight" for linear in family.linears}
    plain = {
        f"{name}.{key}": value for key, value in layer.state_dict().items() if key not in quantized
    }
    weights = {f"{name}.{linear}": weight for linear, weight in packed.items()}
    writer.add_shard(f"layer-{index:05d}.safetensors", plain, weights)


def _write_rest(folder: ModelFolder, writer: CheckpointWriter) -> None:
    """Copy what lies outside the decoder layers: embeddings, final norm, head; one at a time."""
    prefix = f"{folder.family.layers}."
    names = [name for name in folder.tensor_names() if not name.startswith(prefix)]
    for index, name in enumerate(names):
        writer.add_shard(f"rest-{index:05d}.safetensors", folder.tensors([name]))


def _sampled_layers(count: int) -> set[int]:
    """First, middle and last layer: their activations are kept for figures 3 and 4."""
    return {round(i * (count - 1) / (SAMPLED_LAYERS - 1)) for i in range(SAMPLED_LAYERS)}


def _keep_arrays(
    name: str, plan: InputPlan, options: FMPQOptions, sampled: bool, arrays: dict, facts: dict
) -> None:
    statistic = plan.statistics.metric(options.outlier_metric)
    arrays[f"{name}.channel_stat"] = statistic.contiguous()
    arrays[f"{name}.perm"] = plan.permutation
    if sampled:
        arrays[f"{name}.sample"] = plan.sample.half()
    facts[name] = {
        "int4_blocks": plan.layout.int4_blocks,
        "int8_blocks": plan.layout.int8_blocks,
    }


def _share_records(
    shares: dict[str, dict], model: str, checkpoint: str, run: dict, **common
) -> list[Measurement]:
    threshold = run["options"]["outlier_threshold"]
    method = {
        "what": "share of the layer's linears, in percent",
        **run,
        "outlier": f"channel statistic above {threshold} times the input's median",
    }
    return [
        Measurement(
            kind="quantize",
            case={"model": model, "layer": name, "method": checkpoint},
            metric=metric,
            unit="percent",
            backend="fmpq",
            samples=[layer[metric]],
            method=method,
            **common,
        )
        for name, layer in shares.items()
        for metric in METRICS
    ]
