# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model on the weights of an FMPQ checkpoint."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from comet.errors import UserError
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.shared_input import SharedInput
from comet.formats.checkpoint import Checkpoint
from comet.models.families import family_named


def load_checkpoint_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    act_scale: str | None = "options",
    path: str = "fake",
) -> torch.nn.Module:
    """Load a checkpoint as a causal language model in eval mode.

    Args:
        folder: FMPQ checkpoint.
        dtype: type of everything that is not quantized.
        device: where the model goes.
        act_scale: activation scale mode; ``options`` takes the one the checkpoint was made for,
            None leaves activations in 16 bit.
        path: ``fake`` or ``integer`` (``comet.fmpq.layer``).

    Raises:
        UserError: the folder is no FMPQ checkpoint or lacks a tensor.
    """
    checkpoint = Checkpoint(folder)
    config = AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    with no_init_weights():
        # Memory of weights that are replaced below is reserved but never touched.
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    mode = checkpoint.options["act_scale"] if act_scale == "options" else act_scale
    for name in checkpoint.layers:
        _replace(model, name, checkpoint, mode, path, device)
    _share_inputs(model)
    _load_plain(model, checkpoint, dtype)
    return model.to(device)


def _replace(
    model: torch.nn.Module,
    name: str,
    checkpoint: Checkpoint,
    mode: str | None,
    path: str,
    device: torch.device | str,
) -> None:
    parent, _, leaf = name.rpartition(".")
    bias = checkpoint.tensor(f"{name}.bias") if f"{name}.bias" in checkpoint.weight_map else None
    layer = W4AxLinear(
        checkpoint.packed_weight(name).to(device),
        bias,
        mode,
        checkpoint.options["act_zero_point"],
        path,
    )
    setattr(model.get_submodule(parent), leaf, layer)


def _share_inputs(model: torch.nn.Module) -> None:
    """Linears of one input are quantized with one permutation, so they round it alike."""
    family = family_named(model.config.model_type, "the checkpoint")
    for layer in family.layers_of(model):
        for group in family.inputs:
            shared = SharedInput(len(group.linears))
            for name in group.linears:
                layer.get_submodule(name).shared = shared


def _load_plain(model: torch.nn.Module, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    tensors = {name: checkpoint.tensor(name).to(dtype) for name in checkpoint.plain_names()}
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if lost := [name for name in missing if name not in tied]:
        raise UserError(f"{checkpoint.folder} lacks the tensor {lost[0]}; quantize the model again")
    if unexpected:
        raise UserError(
            f"{checkpoint.folder} holds {unexpected[0]}, which the model does not have; "
            "quantize the model again"
        )
