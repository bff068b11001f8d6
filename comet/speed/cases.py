# SPDX-License-Identifier: Apache-2.0
"""Which GEMM cases are measured: the shapes of a model, and three suites over reference layers.

``reference`` compares rival kernels, ``modes`` the scales that W4Ax can use, ``ablations`` the
kernel with and without each of its techniques (paper, Fig. 13).
"""

from dataclasses import dataclass

from comet.errors import UserError

# The paper fixes the share of INT4 x INT4 products in its kernel tests (section 6.1).
PAPER_INT4_SHARE = 0.75
# Six shapes from wide and short to narrow and long.
REFERENCE_LAYERS = (
    ("LLaMA-2-7B", "qkv"),
    ("LLaMA-2-13B", "qkv"),
    ("LLaMA-3-8B", "gate_up"),
    ("LLaMA-3-8B", "down"),
    ("LLaMA-3-70B", "gate_up"),
    ("LLaMA-3-70B", "o"),
)
ABLATION_LAYERS = REFERENCE_LAYERS[2:]
PAPER_M = (2, 4, 16, 64, 256)
SUITE_M = {
    "reference": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "modes": (1, 16, 64, 256, 1024),
    "ablations": (16, 32, 64, 128, 256),
}
BASELINE = "cublas-bf16"
REFERENCE_BACKENDS = (
    BASELINE,
    "comet-w4ax",
    "comet-w4a8",
    "torch-fp8",
    "vllm-marlin-w4a16",
    "vllm-marlin-w4a8",
    "vllm-machete-w4a16",
    "vllm-cutlass-int8",
    "vllm-cutlass-fp8",
    "vllm-cutlass-w4a8",
)
# What differs from the default mode (scales: docs/contracts.md).
MODES = {
    "default": {},
    "token_block": {"act_scale": "token_block", "weight_scale": "group_fp"},
    "token": {"act_scale": "token"},
    "zero_point": {"zero_point": True},
    "hadamard": {"hadamard": True},
}
MODE_BACKENDS = (BASELINE, "comet-w4ax")
# Build variants, by the names of ``comet.kernels.variants``.
ABLATIONS = ("full", "without-pipeline", "without-interleaving", "naive-conversion")
ABLATION_BACKENDS = ("comet-w4ax", "comet-w4ax-sm80")


def is_default(case: dict) -> bool:
    """Whether a gemm case is the full kernel in the default mode; a key left out is the default."""
    usual = {"act_scale": "token_block_multiple", "weight_scale": "group_int"}
    usual |= {"zero_point": False, "hadamard": False, "variant": "full"}
    return all((case.get(name) or value) == value for name, value in usual.items())


@dataclass(frozen=True)
class Job:
    """One case and the backends that are measured on it side by side."""

    case: dict
    backends: tuple[str, ...]


def jobs_of(suite: str, m: list[int] | None = None, backends: list[str] | None = None) -> list[Job]:
    """What a suite measures, in the order in which it is measured: one batch after the other.

    Args:
        suite: ``reference``, ``modes``, ``ablations``, or a model of
            ``resources/paper/model_shapes.csv``.
        m: batch sizes (tokens); None for those of the suite.
        backends: names of ``comet.speed.backends``; None for those of the suite.

    Raises:
        UserError: the suite is neither a known one nor a model of the table.
    """
    from comet.models.shapes import shapes_of  # slow to load, and the command line reads this file

    layers, chosen, changes = REFERENCE_LAYERS, REFERENCE_BACKENDS, [{}]
    if suite == "modes":
        chosen, changes = MODE_BACKENDS, list(MODES.values())
    elif suite == "ablations":
        layers, chosen = ABLATION_LAYERS, ABLATION_BACKENDS
        changes = [{"variant": name} for name in ABLATIONS]
    elif suite != "reference":
        layers = tuple((suite, layer) for layer in shapes_of(suite).linears)
    chosen = tuple(backends) if backends else chosen
    return [
        Job(_case(model, layer, batch, *shapes_of(model).linears[layer]) | change, chosen)
        for batch in m or SUITE_M.get(suite, PAPER_M)
        for model, layer in layers
        for change in changes
    ]


def gemm_cases(suite: str, m: list[int] | None = None) -> list[dict]:
    """The cases of ``jobs_of``."""
    return [job.case for job in jobs_of(suite, m)]


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


def shard_of(jobs: list[Job], shard: str) -> list[Job]:
    """Every n-th job, starting with the i-th.

    Args:
        jobs: all jobs.
        shard: ``i/n`` with 1 <= i <= n; ``1/1`` is everything.

    Raises:
        UserError: the shard is not of that form.
    """
    first, _, count = shard.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise UserError(f"--shard is {shard!r}; it must be i/n with 1 <= i <= n, such as 1/4")
    return jobs[int(first) - 1 :: int(count)]
