# SPDX-License-Identifier: Apache-2.0
"""Models of a real model's shape with random weights: for memory and speed, never for accuracy."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from comet.errors import UserError
from comet.files import write_json
from comet.models.families import family_named
from comet.models.folder import INDEX
from comet.models.shapes import ModelShapes, shapes_of

CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config}
BYTES = 2
STD = 0.02


def shape_family(shape: str) -> str:
    """Family of a model of the table of shapes; its name starts with it.

    Raises:
        UserError: no random model of this family is made.
    """
    family = shape.split("-")[0].lower()
    if family not in CONFIGS:
        raise UserError(f"{shape}: random weights are made for {', '.join(CONFIGS)} only")
    return family


def random_shapes(source: dict) -> ModelShapes:
    """Shapes that a source of kind ``random`` asks for: a model of the table, maybe cut short.

    Raises:
        UserError: the table does not have the model, or not that many layers.
    """
    shapes = shapes_of(source["shape"])
    layers = source.get("layers", shapes.layers)
    if not 1 <= layers <= shapes.layers:
        raise UserError(f"{shapes.model} has {shapes.layers} layers; {layers} were asked for")
    return replace(shapes, layers=layers)


def check_space(shapes: ModelShapes, place: Path, factor: float = 1.0) -> None:
    """Refuse to start where the disk cannot hold ``factor`` times the 16-bit weights.

    Raises:
        UserError: too little free space.
    """
    place = place.absolute()
    while not place.exists():
        place = place.parent
    needed, free = factor * BYTES * weight_count(shapes), shutil.disk_usage(place).free
    if free < needed:
        raise UserError(
            f"random weights of {shapes.model} need {needed / 1e9:.1f} GB in {place}, where "
            f"{free / 1e9:.1f} GB are free; free space or set the config key resources to a folder "
            "on a larger disk"
        )


def weight_count(shapes: ModelShapes) -> int:
    """Weights of the linears, the embedding and the head; norms and biases are left out."""
    return shapes.linear_weights + 2 * shapes.vocab * shapes.hidden


def write_random_model(folder: Path, shapes: ModelShapes, family: str, seed: int = 0) -> None:
    """Write a Hugging Face folder with random fp16 weights, one shard a decoder layer.

    Weights and biases are normal with standard deviation 0.02, those of norms are ones. The same
    seed gives the same bytes. Memory holds one layer, or the embedding, at a time.

    Args:
        folder: existing folder; the caller makes it appear atomically.
        shapes: sizes.
        family: ``llama``, ``mistral`` or ``qwen2``.
        seed: of all weights.
    """
    config = model_config(shapes, family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.dtype = torch.float16
    config.save_pretrained(folder)
    plain_tokenizer().save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    weight_map, total = {}, 0
    for shard, names in _shards(model, family):
        tensors = {name: _draw(name, model.get_parameter(name).shape, generator) for name in names}
        save_file(tensors, folder / shard, metadata={"format": "pt"})
        (folder / shard).chmod(0o644)
        weight_map |= dict.fromkeys(names, shard)
        total += sum(tensor.nbytes for tensor in tensors.values())
        # Gone before the next shard is drawn.
        del tensors
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def model_config(shapes: ModelShapes, family: str) -> PreTrainedConfig:
    """The transformers configuration of shapes, without special tokens."""
    options = {"sliding_window": None} if family == "mistral" else {}
    return CONFIGS[family](
        vocab_size=shapes.vocab,
        hidden_size=shapes.hidden,
        intermediate_size=shapes.intermediate,
        num_hidden_layers=shapes.layers,
        num_attention_heads=shapes.heads,
        num_key_value_heads=shapes.kv_heads,
        head_dim=shapes.head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **options,
    )


def _shards(model: torch.nn.Module, family: str) -> Iterator[tuple[str, list[str]]]:
    """(file, names of its tensors): one for each layer, and one for each tensor outside them."""
    layers = family_named(family, "random weights").layers
    names = list(model.state_dict())
    count = len(model.get_submodule(layers))
    for index in range(count):
        prefix = f"{layers}.{index}."
        yield f"layer-{index:05d}.safetensors", [n for n in names if n.startswith(prefix)]
    for name in (name for name in names if not name.startswith(f"{layers}.")):
        yield f"{name.removesuffix('.weight')}.safetensors", [name]


def _draw(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.float16)
    return torch.randn(shape, generator=generator).mul_(STD).half()


def plain_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, without merges: it fits every text and every vocabulary."""
    pieces = {piece: index for index, piece in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(pieces, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
