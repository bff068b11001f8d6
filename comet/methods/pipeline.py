# SPDX-License-Identifier: Apache-2.0
"""A method on a whole model, one decoder layer in memory at a time, and the model it makes."""

import gc
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from tqdm import tqdm

from comet.data.windows import text_windows
from comet.errors import UserError
from comet.files import atomic_path, write_json
from comet.fmpq.end_loss import token_weights
from comet.fmpq.pipeline import Calibration
from comet.methods.linear import FakeLinear, share_input
from comet.methods.method import Block, Method, watch_inputs
from comet.models.arithmetic import tensor_type
from comet.models.families import Family
from comet.models.folder import ModelFolder
from comet.models.stream import LayerStream

DESCRIPTION = "method.json"


def apply_method(
    name: str,
    method: Method,
    folder: ModelFolder,
    calibration: Calibration,
    out: Path,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Quantize a model's linears into the folder ``out``, which appears whole or not at all.

    The folder holds one safetensors file a decoder layer and ``method.json``; everything else is
    taken from the 16-bit model when it is loaded.

    Args:
        name, method: which method.
        folder: the 16-bit model.
        calibration: text that the method looks at.
        device, dtype: where and in which type layers run; restored weights are stored in it.
        seed: of the method's random choices.
        weights: what ``token_weights`` gives for the calibration, for a method that asks for it;
            None: computed here.

    Raises:
        UserError: calibration text too short, or an activation that is not finite.
    """
    torch.manual_seed(seed)
    layers = {}
    with atomic_path(out) as temporary:
        temporary.mkdir(parents=True)
        for index, quantized in _layers(method, folder, calibration, device, dtype, weights):
            # Linears of one input share their transforms; a file holds every tensor by itself.
            tensors = {
                f"{linear}.{key}": value.to("cpu", copy=True, memory_format=torch.contiguous_format)
                for linear, layer in quantized.items()
                for key, value in layer.state_dict().items()
            }
            save_file(tensors, temporary / _file(index))
            layers[str(index)] = {name: layer.description() for name, layer in quantized.items()}
        facts = {"calibration": calibration.dataset, "windows": calibration.windows}
        facts |= {"context": calibration.context, "settings": repr(method), "seed": seed}
        write_json(temporary / DESCRIPTION, {"method": name, **facts, "layers": layers})


def _file(index: int | str) -> str:
    return f"layer-{int(index):05d}.safetensors"


def _layers(
    method: Method,
    folder: ModelFolder,
    calibration: Calibration,
    device: str,
    dtype: str,
    weights: Mapping[str, torch.Tensor] | None,
) -> Iterator[tuple[int, dict[str, FakeLinear]]]:
    """Number and quantized linears of each decoder layer."""
    windows = text_windows(
        folder.tokenizer(),
        calibration.path,
        calibration.joiner,
        calibration.context,
        range(calibration.windows if method.calibrated or method.trains else 1),
    )
    weighted = method.end_loss and method.calibrated
    if weighted and weights is None:
        weights = token_weights(folder, windows, device, tensor_type(dtype))
    stream = LayerStream(folder, windows, device, tensor_type(dtype))
    exact = stream.hidden.clone() if method.trains else None
    for index, layer, run in stream:
        inputs = {}
        if method.calibrated:
            watched_run = run if method.sequential else partial(run, advance=True)
            own = None
            if weighted:
                name = f"{folder.family.layers}.{index}"
                own = {g.name: weights[f"{name}.{g.name}"] for g in folder.family.inputs}
            inputs = watch_inputs(layer, folder.family, watched_run, windows.numel(), own)
        if method.trains:
            exact = _exact_outputs(layer, exact, stream)
        hidden = stream.hidden if method.sequential else None
        block = Block(index, hidden, exact, stream.forward, *_heads(folder.config))
        quantized = method.quantize_layer(layer, folder.family, inputs, block)
        if missing := set(folder.family.linears) - set(quantized):
            raise ValueError(f"{method.label} left out {', '.join(sorted(missing))}")
        if method.sequential:
            replace_linears(layer, quantized)
            stream.advance()
        yield index, quantized
        # The graphs of trained layers hold cycles.
        del layer, inputs, block, quantized
        gc.collect()


def _heads(config) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of the attention."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


@torch.no_grad()
def _exact_outputs(layer: nn.Module, hidden: torch.Tensor, stream: LayerStream) -> torch.Tensor:
    return torch.cat([stream.forward(layer, window[None]) for window in hidden])


def replace_linears(layer: nn.Module, quantized: dict[str, nn.Module]) -> None:
    """Put quantized linears in the place of those of the same name inside a decoder layer."""
    for name, linear in quantized.items():
        parent, _, leaf = name.rpartition(".")
        setattr(layer.get_submodule(parent), leaf, linear)


def method_facts(quantized: Path) -> dict:
    """Method, settings and calibration of a quantized model, for records.

    Raises:
        UserError: the folder is not one that ``apply_method`` wrote.
    """
    return {key: fact for key, fact in _description(quantized).items() if key != "layers"}


def _description(quantized: Path) -> dict:
    if not (quantized / DESCRIPTION).is_file():
        raise UserError(f"{quantized} holds no quantized model ({DESCRIPTION}); run its method")
    return json.loads((quantized / DESCRIPTION).read_text(encoding="utf-8"))


def load_method_model(
    quantized: Path, folder: ModelFolder, dtype: torch.dtype, device: str
) -> nn.Module:
    """The 16-bit model on the quantized linears that ``apply_method`` wrote.

    Raises:
        UserError: the folder is not one of these, or does not fit the model.
    """
    layers = _description(quantized)["layers"]
    model = folder.load(dtype, device)
    decoder = folder.family.layers_of(model)
    if len(layers) != len(decoder):
        raise UserError(
            f"{quantized} holds {len(layers)} layers, the model {len(decoder)}; quantize it again"
        )
    for index, linears in tqdm(layers.items(), desc="quantized layers", disable=None):
        read = _read_layer(quantized, index, linears, folder.family, dtype, device)
        replace_linears(decoder[int(index)], read)
        for group in folder.family.inputs:
            share_input([read[name] for name in group.linears])
    return model


def _read_layer(
    quantized: Path, index: str, linears: dict, family: Family, dtype: torch.dtype, device: str
) -> dict[str, FakeLinear]:
    with safe_open(quantized / _file(index), framework="pt") as file:
        tensors = {key: file.get_tensor(key).to(device) for key in file.keys()}  # noqa: SIM118
    read = {}
    for name in family.linears:
        prefix = f"{name}."
        own = {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        layer = FakeLinear.from_description(linears[name], own)
        layer.weight.data = layer.weight.data.to(dtype)
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(dtype)
        read[name] = layer
    return read
