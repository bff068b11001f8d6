# SPDX-License-Identifier: Apache-2.0
"""Records of attention jobs: measured, or skipped with what is missing; memory of the KV cache."""

from pathlib import Path

from comet.measurements import Measurement, environment, provenance
from comet.speed import capability
from comet.speed.attention_cases import BACKENDS, MODELS, kv_token_bytes
from comet.speed.bench import GPU_HINT, not_timed
from comet.speed.cases import Job

# Seconds of one H200: operands, and replays that take 0.02 s each.
SECONDS_A_BACKEND = 0.33


def estimated_seconds(jobs: list[Job]) -> float:
    """About how long the jobs occupy a GPU, without the start of the process (about 15 s)."""
    return SECONDS_A_BACKEND * sum(len(job.backends) for job in jobs)


def attention_records(
    jobs: list[Job], library: Path, config: dict, seed: int, keep: Path | None = None
) -> list[Measurement]:
    """Time every job, or say why not.

    Args:
        jobs: of ``comet.speed.attention_cases.attention_jobs``.
        library: the compiled CUDA library.
        config, seed: for provenance; the seed also draws the operands.
        keep: folder of finished cases; what is there is not measured again.

    Returns:
        Records of each case and backend; without a GPU all are skipped.
    """
    found = capability.detect()
    if found["gpu"]:
        from comet.speed.attention import measure_attention

        return measure_attention(jobs, library, config, seed, keep=keep)
    return not_timed("attention", jobs, f"{found['gpu_missing']}; {GPU_HINT}", config, seed)


def memory_records(models: list[str], config: dict, seed: int) -> list[Measurement]:
    """``kv_bytes_per_token`` of each model, context and format, all layers; computed, not measured.

    Args:
        models: of ``comet.speed.attention_cases.MODELS``.
        config, seed: for provenance.
    """
    source = {"environment": environment(), "provenance": provenance(config, seed)}
    method = {
        "computed": "from the format: codes, scales and zeros, all layers; KV4 with the last page "
        "of K in 16 bit beside its pages",
        "not_included": "block tables, pages that are not full, layers that are kept in 16 bit",
    }
    records = []
    for model in models:
        sizes = MODELS[model]
        for context in sizes.contexts:
            case = {
                "model": model,
                "batch": 1,
                "context": context,
                "heads": sizes.heads,
                "kv_heads": sizes.kv_heads,
                "head_dim": sizes.head_dim,
                "kv_bytes_16bit": context * sizes.token_bytes,
                "layers": sizes.layers,
            }
            for backend in BACKENDS:
                each = kv_token_bytes(backend, sizes.head_dim, context)
                total = each * sizes.kv_heads * sizes.layers
                fields = {"method": method, "origin": "modelled", **source}
                metric = ("kv_bytes_per_token", "bytes")
                records.append(Measurement("attention", case, *metric, backend, [total], **fields))
    return records
