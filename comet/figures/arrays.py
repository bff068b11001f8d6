# SPDX-License-Identifier: Apache-2.0
"""Activation statistics that quantization leaves for the figures."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from comet.errors import UserError

BLOCK = 128
SAMPLE = ".sample"


@dataclass(frozen=True)
class Sample:
    """Activations of one linear input on calibration text.

    Attributes:
        name: ``<layer>.<input>``.
        values: float32 [tokens, channels], signed, natural channel order.
        permutation: int32 [padded channels], natural channel of each position, -1 for padding.
        int8_blocks: blocks of 128 at the end of the permuted order that are kept in INT8.
    """

    name: str
    values: np.ndarray
    permutation: np.ndarray
    int8_blocks: int


class Statistics:
    """The open file: names first, tensors only when asked for.

    Attributes:
        model: id of the quantized model, as the ``layers.json`` beside the file names it.
        layers: ``<layer>.<input>`` -> numbers of INT4 and INT8 blocks.
        sampled: names of the inputs whose activations were kept.
    """

    def __init__(self, handle, model: str) -> None:
        self._handle = handle
        self.model = model
        self.layers: dict[str, dict] = json.loads((handle.metadata() or {}).get("layers", "{}"))
        self.sampled = sorted(
            (name.removesuffix(SAMPLE) for name in handle.keys() if name.endswith(SAMPLE)),  # noqa: SIM118
            key=order,
        )

    def sample(self, name: str) -> Sample:
        """The activations of one linear input."""
        return Sample(
            name,
            self._tensor(name + SAMPLE).astype(np.float32),
            self._tensor(name + ".perm").astype(np.int64),
            int(self.layers[name]["int8_blocks"]),
        )

    def _tensor(self, name: str) -> np.ndarray:
        tensor = self._handle.get_tensor(name)
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


@contextmanager
def opened(path: Path) -> Iterator[Statistics]:
    """Open the statistics.

    Raises:
        UserError: the file is missing or not such a file.
    """
    try:
        model = json.loads((Path(path).parent / "layers.json").read_text(encoding="utf-8"))["model"]
        with safe_open(path, framework="pt") as handle:
            yield Statistics(handle, model)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}); run the quantize target again") from error


def order(name: str) -> tuple[int, str]:
    """Sort key of ``<layer>.<input>``: layer number, then input."""
    index, kind = split(name)
    return index, kind


def split(name: str) -> tuple[int, str]:
    """Layer number and input of ``model.layers.10.attn_in``; -1 where there is no number."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    if not numbers:
        return -1, name
    return int(parts[numbers[0]]), ".".join(parts[numbers[0] + 1 :])


def representative(names: list[str], count: int) -> list[str]:
    """Up to ``count`` names: each kind of input once, from another layer each, before a repeat."""
    layers = list(dict.fromkeys(split(name)[0] for name in names))
    kinds = list(dict.fromkeys(split(name)[1] for name in names))
    wanted = [(layers[i % len(layers)], kind) for i, kind in enumerate(kinds)] if layers else []
    first = [name for name in names if split(name) in wanted]
    rest = [name for name in names if name not in first]
    return sorted([*first, *rest][:count], key=order)


def pooled(values: np.ndarray, axis: int, bins: int) -> np.ndarray:
    """The largest value of each of at most ``bins`` equal stretches along an axis."""
    size = values.shape[axis]
    starts = np.unique(np.linspace(0, size, min(bins, size), endpoint=False).astype(int))
    return np.maximum.reduceat(values, starts, axis=axis)
