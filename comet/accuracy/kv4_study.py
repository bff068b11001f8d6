# SPDX-License-Identifier: Apache-2.0
"""What the low-bit KV cache costs by granularity, bits and layers, everything else in 16 bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comet.accuracy.attention import use_kv4
from comet.accuracy.kv_quantization import KVQuantization
from comet.accuracy.perplexity import metric_name, perplexity, window_losses
from comet.data.windows import text_windows
from comet.measurements import Measurement, provenance
from comet.models.arithmetic import scoring_type
from comet.models.folder import ModelFolder
from comet.speed.gpu_environment import device_environment

BACKEND = "w16a16-kv"
EXACT = "16 bit"
DEFAULT = "K channel x 64 tokens, V token"
TOKEN = {"key_granularity": "token"}
GRANULARITY = {
    DEFAULT: {},
    "K alone": {"value_bits": 16},
    "V alone": {"key_bits": 16},
    "K channel x 32 tokens": {"page": 32},
    "K channel x 128 tokens": {"page": 128},
    "K channel, before RoPE": {"before_rope": True},
    "K channel, symmetric": {"symmetric": True},
    "K token": TOKEN,
    "K token, groups of 32": TOKEN | {"group": 32},
    "K token, before RoPE": TOKEN | {"before_rope": True},
    "K token, Hadamard": TOKEN | {"hadamard": True},
    "K tensor": {"key_granularity": "tensor"},
    "V channel x 64 tokens": {"value_granularity": "channel"},
    "V tensor": {"value_granularity": "tensor"},
}
BITS = {
    "K8 V8": {"key_bits": 8, "value_bits": 8},
    "K4 V4": {},
    "K4 V4, symmetric": {"symmetric": True},
    "K4 V3": {"value_bits": 3},
    "K3 V4": {"key_bits": 3},
    "K3 V3": {"key_bits": 3, "value_bits": 3},
    "K4 V2": {"value_bits": 2},
    "K2 V4": {"key_bits": 2},
    "K2 V2": {"key_bits": 2, "value_bits": 2},
}
ENDS = (1, 2, 4)
SETS = ("granularity", "bits", "skip", "layers")


@dataclass(frozen=True)
class Variant:
    """One way to keep K and V: options, and which decoder layers they hold for (None: all)."""

    options: KVQuantization
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class KV4Study:
    """What is compared, on which text.

    Attributes:
        model: model id for the records.
        folder: the 16-bit model.
        name: one of ``SETS``.
        dataset, text, joiner: the scored text (its test part).
        context: tokens of a window.
        tokens: so many leading tokens are scored, in whole windows, at least one.
        device, dtype: torch device, and arithmetic of the model.
    """

    model: str
    folder: Path
    name: str
    dataset: str
    text: Path
    context: int
    tokens: int
    joiner: str = "\n\n"
    device: str = "cpu"
    dtype: str = "float32"


def variants(name: str, layers: int) -> dict[str, Variant]:
    """The variants of a set, by label, for a model of so many decoder layers."""
    tables = {"granularity": GRANULARITY, "bits": BITS}
    if name in tables:
        return {label: Variant(KVQuantization(**how)) for label, how in tables[name].items()}
    default = KVQuantization()
    if name == "layers":
        return {f"layer {index}": Variant(default, (index,)) for index in range(layers)}
    every = range(layers)
    found = {"no layer skipped": Variant(default)}
    for count in ENDS:
        found[f"first {count} in 16 bit"] = Variant(default, tuple(every[count:]))
        found[f"last {count} in 16 bit"] = Variant(default, tuple(every[: layers - count]))
    found["first and last in 16 bit"] = Variant(default, tuple(every[1:-1]))
    return found


def compare_variants(study: KV4Study, config: dict, seed: int) -> list[Measurement]:
    """Perplexity of a 16-bit model under each variant of a set; the first record is 16 bit."""
    source = provenance(config, seed)
    folder = ModelFolder(study.folder)
    numbers = range(max(1, study.tokens // study.context))
    windows = text_windows(folder.tokenizer(), study.text, study.joiner, study.context, numbers)
    model = folder.load(scoring_type(study.dtype), study.device)
    exact = KVQuantization(key_bits=16, value_bits=16)
    layers = len(folder.family.layers_of(model))
    records = []
    for label, variant in {EXACT: Variant(exact), **variants(study.name, layers)}.items():
        use_kv4(model, variant.options, variant.layers)
        losses = window_losses(model, windows, label)
        records.append(_record(study, label, variant, losses, source))
    return records


def _record(
    study: KV4Study, label: str, variant: Variant, losses: Sequence[float], source: dict
) -> Measurement:
    count = len(losses)
    return Measurement(
        kind="accuracy",
        case={
            "model": study.model,
            "dataset": study.dataset,
            "split": "test",
            "context": study.context,
            "windows": f"0-{count - 1}" if count > 1 else "0",
            "task": None,
            "limit": None,
            "kv": {"set": study.name, "variant": label},
        },
        metric=metric_name(study.context),
        unit="1",
        backend=BACKEND,
        samples=[perplexity(losses, study.context)],
        method={
            "kv": variant.options.as_dict(),
            "layers": "all" if variant.layers is None else list(variant.layers),
            "window_losses": list(losses),
            "arithmetic": study.dtype,
            "path": "fake quantization",
        },
        environment=device_environment(study.device),
        provenance=source,
    )
