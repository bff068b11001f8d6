# SPDX-License-Identifier: Apache-2.0
"""Which GEMM cases a model has, and their records: measured, or skipped with what is missing."""

from pathlib import Path

from comet import hints
from comet.measurements import Measurement, environment, provenance, skipped
from comet.models.shapes import shapes_of
from comet.speed import capability

# The paper fixes the share of INT4 x INT4 products in its kernel tests (section 6.1).
PAPER_INT4_SHARE = 0.75
# The layers on which rival kernels are compared; six shapes from wide and short to narrow and long.
REFERENCE = "reference"
REFERENCE_LAYERS = (
    ("LLaMA-2-7B", "qkv"),
    ("LLaMA-2-13B", "qkv"),
    ("LLaMA-3-8B", "gate_up"),
    ("LLaMA-3-8B", "down"),
    ("LLaMA-3-70B", "gate_up"),
    ("LLaMA-3-70B", "o"),
)
GPU_HINT = hints.GPU


def gemm_cases(model: str, m: list[int]) -> list[dict]:
    """The linears of one decoder layer at each batch size, in the default W4Ax modes.

    Args:
        model: a model of ``resources/paper/model_shapes.csv``, or ``reference`` for the six layers
            on which rival kernels are compared.
        m: batch sizes (tokens).

    Raises:
        UserError: the model is not in the table.
    """
    layers = REFERENCE_LAYERS
    if model != REFERENCE:
        layers = tuple((model, layer) for layer in shapes_of(model).linears)
    return [
        _case(name, layer, batch, *shapes_of(name).linears[layer])
        for batch in m
        for name, layer in layers
    ]


def _case(model: str, layer: str, m: int, n: int, k: int) -> dict:
    return {
        "model": model,
        "layer": layer,
        "m": m,
        "n": n,
        "k": k,
        "int4_share": PAPER_INT4_SHARE,
        "act_scale": "token_block_multiple",
        "weight_scale": "group_int",
        "zero_point": False,
        "hadamard": False,
        "variant": "full",
    }


def gemm_records(
    model: str, m: list[int], backends: list[str], library: Path, config: dict, seed: int
) -> list[Measurement]:
    """Time every case with every backend, or say why not.

    Args:
        model, m: as ``gemm_cases``.
        backends: names of implementations (``comet.speed.backends``).
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws the operands.

    Returns:
        One record a case and backend, in microseconds; without a GPU all are skipped.
    """
    found = capability.detect()
    cases = gemm_cases(model, m)
    if found["gpu"]:
        from comet.speed.gemm import measure

        return measure(cases, backends, library, config, seed)
    source = {"environment": environment(), "provenance": provenance(config, seed)}
    reason = f"{found['gpu_missing']}; {GPU_HINT}"
    return [
        skipped("gemm", case, "time", "us", backend, reason, **source)
        for case in cases
        for backend in backends
    ]
