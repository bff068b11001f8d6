# SPDX-License-Identifier: Apache-2.0
"""Which decode attention cases are measured, and the memory of a KV cache."""

from dataclasses import dataclass

from comet.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Attention:
    """Heads of a model, and the batches and contexts that are measured on it.

    Attributes:
        label: the model's name in the paper's table of shapes.
        layers, heads, kv_heads, head_dim: of the model.
        batches, contexts: all pairs of them are cases, up to ``most_bytes`` of 16-bit KV.
        unfinished: further contexts, whose last page of a paged cache is half full: what serving
            meets, as bars are for whole pages.
    """

    label: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    batches: tuple[int, ...] = (1, 16, 64, 256)
    contexts: tuple[int, ...] = (1024, 4096, 16384)
    unfinished: tuple[int, ...] = ()
    most_bytes: int = 4 * GIB

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token and layer in 16 bit."""
        return 4 * self.kv_heads * self.head_dim


MODELS = {
    "llama2-7b": Attention("LLaMA-2-7B", 32, 32, 32),
    "llama3-8b": Attention("LLaMA-3-8B", 32, 32, 8, unfinished=(1056, 4128)),
    "llama3-70b": Attention("LLaMA-3-70B", 80, 64, 8),
    "qwen2-72b": Attention(
        "Qwen2-72B", 80, 64, 8, batches=(1, 4, 16), contexts=(65536, 131072), most_bytes=16 * GIB
    ),
}
# The rows on which the speed of KV4 attention is judged.
REFERENCE = ("llama2-7b", "llama3-8b", "llama3-70b")
SIXTEEN_BIT = ("sdpa-bf16", "vllm-fa3-bf16")
BACKENDS = ("comet-kv4", *SIXTEEN_BIT, "vllm-fa3-fp8", "vllm-turboquant-4bit")


def attention_cases(model: str) -> list[dict]:
    """Decode steps of one layer of a model: one new token a sequence, all of equal length.

    Raises:
        UserError: the model is unknown.
    """
    if model not in MODELS:
        raise UserError(f"no attention shapes of a model {model!r}; known are {', '.join(MODELS)}")
    sizes = MODELS[model]
    return [
        attention_case(model, batch, context)
        for batch in sizes.batches
        for context in (*sizes.contexts, *sizes.unfinished)
        if batch * context * sizes.token_bytes <= sizes.most_bytes
    ]


def attention_case(model: str, batch: int, context: int) -> dict:
    """The record's description of one case; ``kv_bytes_16bit`` is its traffic in 16 bit."""
    sizes = MODELS[model]
    return {
        "model": model,
        "batch": batch,
        "context": context,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "kv_bytes_16bit": batch * context * sizes.token_bytes,
    }


def attention_jobs(model: str, backends: list[str] | None = None) -> list:
    """The cases of a model with the backends that are measured on them side by side.

    Returns:
        Of ``comet.speed.cases.Job``.
    """
    from comet.speed.cases import Job

    return [Job(case, tuple(backends or BACKENDS)) for case in attention_cases(model)]


def kv_token_bytes(backend: str, head_dim: int, context: int) -> float:
    """Bytes that a KV cache holds for one token, layer and KV head, scales and zeros included.

    Args:
        backend: of ``BACKENDS``; its format counts.
        head_dim: D.
        context: tokens of a sequence; KV4 keeps the last page of K in 16 bit beside its pages.
    """
    if backend == "comet-kv4":
        from comet.formats.kv4 import PAGE, page_bytes  # torch: not for figures and parsing

        pages = -(-context // PAGE)
        return (pages * page_bytes(head_dim) + 2 * PAGE * head_dim) / context
    if backend == "vllm-turboquant-4bit":
        return head_dim + 6  # codes of K and V; fp16: norm of K, scale and zero of V
    return head_dim * (2 if backend == "vllm-fa3-fp8" else 4)
