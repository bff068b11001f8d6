# SPDX-License-Identifier: Apache-2.0
"""FMPQ as a quantization method of Hugging Face transformers; importing this module registers it.

::

    import comet.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained("folder of an FMPQ checkpoint")
"""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.quantizers import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from comet.errors import UserError
from comet.files import write_json_lines
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.formats.checkpoint import FORMAT_VERSION
from comet.integrations.linear import FMPQLinear
from comet.models.folder import ModelFolder

METHOD = "fmpq"


@register_quantization_config(METHOD)
class FMPQConfig(QuantizationConfigMixin):
    """The ``quantization_config`` of an FMPQ checkpoint.

    Args:
        version: of the checkpoint's format.
        options: the method's options, as ``FMPQOptions.as_dict`` gives them.
        layers: for each quantized linear, its channels, block counts and scale kind.
        facts: what else the checkpoint says of itself; kept as it is.

    Raises:
        UserError: the format is newer than this comet.
    """

    def __init__(self, version: int, options: dict, layers: dict[str, dict], **facts) -> None:
        if version > FORMAT_VERSION:
            raise UserError(
                f"FMPQ checkpoint of format version {version}, this comet reads up to "
                f"{FORMAT_VERSION}; update comet"
            )
        facts.pop("quant_method", None)
        self.quant_method = METHOD
        self.version, self.options, self.layers = version, options, layers
        for name, value in facts.items():
            setattr(self, name, value)


@register_quantizer(METHOD)
class FMPQQuantizer(HfQuantizer):
    """Puts empty ``FMPQLinear`` in the place of quantized linears before weights are loaded."""

    requires_calibration = True

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The kernels take fp16 and bf16; a CPU takes any."""
        return dtype if dtype is not None else torch.bfloat16

    def get_new_dtype(self, converter, param, dtype):
        """Every tensor keeps the type that the module declares for it."""
        return dtype

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: object):
        options = self.quantization_config.options
        for name, facts in self.quantization_config.layers.items():
            parent, _, leaf = name.rpartition(".")
            linear = model.get_submodule(name)
            quantized = FMPQLinear(
                facts,
                linear.out_features,
                linear.bias is not None,
                options["act_scale"],
                options["act_zero_point"],
                linear.weight.dtype,
                device="meta",
            )
            setattr(model.get_submodule(parent), leaf, quantized)
        return model

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_: object):
        # Now rather than in the first forward, which may be one that is being traced.
        for module in model.modules():
            if isinstance(module, FMPQLinear):
                module.prepare()
        return model

    def is_serializable(self, *_: object, **__: object) -> bool:
        """``save_pretrained`` writes the checkpoint again."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Rounding has no gradient."""
        return False

    @property
    def is_compileable(self) -> bool:
        """The kernels are torch operators with fake implementations."""
        return True


def quantize(
    model: PreTrainedModel | str | Path,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    out: str | Path,
    windows: int = 12,
    context: int = 1024,
    seed: int = 0,
    **options,
) -> PreTrainedModel:
    """Quantize a model by FMPQ into the folder ``out`` and load it from there.

    Args:
        model: a causal language model, or the folder of one.
        tokenizer: its tokenizer.
        texts: calibration passages; ``windows * context`` tokens of them are used.
        out: folder of the checkpoint, made here; ``from_pretrained`` loads it.
        windows, context: number and length in tokens of the calibration windows.
        seed: recorded with the checkpoint.
        options: fields of ``comet.fmpq.options.FMPQOptions``, for instance ``act_zero_point=True``.

    Returns:
        The quantized model in eval mode, on the device and in the type of ``model``.

    Raises:
        UserError: too little text, an unknown option, ``out`` exists, or a model that is not
            supported.
    """
    chosen = FMPQOptions.from_config(options)
    if Path(out).exists():
        raise UserError(f"{out} exists; remove it or give another folder for the checkpoint")
    kind = {"dtype": torch.bfloat16, "device_map": None}
    if isinstance(model, PreTrainedModel):
        kind = {"dtype": model.dtype, "device_map": str(model.device)}
    with tempfile.TemporaryDirectory(dir=Path(out).absolute().parent) as scratch:
        folder = _folder_of(model, tokenizer, Path(scratch))
        write_json_lines(
            Path(scratch) / "calibration.jsonl", [{"title": "", "text": text} for text in texts]
        )
        calibration = Calibration(Path(scratch) / "calibration.jsonl", "own", windows, context)
        on_gpu = torch.cuda.is_available()
        quantize_model(
            ModelFolder(folder),
            calibration,
            Path(out),
            chosen,
            "fmpq",
            folder.name,
            {"fmpq": chosen.as_dict()},
            seed,
            device="cuda" if on_gpu else "cpu",
            dtype="bfloat16" if on_gpu else "float32",
        )
    return AutoModelForCausalLM.from_pretrained(out, local_files_only=True, **kind).eval()


def _folder_of(
    model: PreTrainedModel | str | Path, tokenizer: PreTrainedTokenizerBase, scratch: Path
) -> Path:
    """A folder with model and tokenizer; layers are read from it one at a time."""
    if not isinstance(model, PreTrainedModel):
        return Path(model)
    model.save_pretrained(scratch / "model")
    tokenizer.save_pretrained(scratch / "model")
    return scratch / "model"
