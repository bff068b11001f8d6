# SPDX-License-Identifier: Apache-2.0
"""COMET as a vLLM plugin, out of tree (vLLM 0.24, entry point ``vllm.general_plugins``).

vLLM calls ``register`` once in each of its processes, before any model is built. A checkpoint whose
``config.json`` says ``quant_method: fmpq`` then runs on the W4Ax kernels without a flag; the 4-bit
KV cache needs ``--attention-backend CUSTOM`` and ``--max-num-seqs`` (``comet serve`` gives both).
"""

ATTENTION = "comet.integrations.vllm.attention.KV4Backend"


def register() -> None:
    """Tell vLLM about the quantization method and the attention backend; safe to call again.

    An error while a plugin is imported is only logged by vLLM, and the user then reads that the
    method is unknown. Nothing but vLLM's own registry is imported here for that reason.
    """
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        register_quantization_config,
    )

    if "fmpq" not in QUANTIZATION_METHODS:
        from comet.integrations.vllm.quantization import FmpqConfig

        register_quantization_config("fmpq")(FmpqConfig)

    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, ATTENTION)
