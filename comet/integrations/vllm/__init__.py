# SPDX-License-Identifier: Apache-2.0
"""COMET as a vLLM plugin, out of tree (vLLM 0.24, entry point ``vllm.general_plugins``).

vLLM calls ``register`` once in each of its processes, before any model is built. A checkpoint whose
``config.json`` says ``quant_method: fmpq`` then runs on the W4Ax kernels without a flag.
"""


def register() -> None:
    """Tell vLLM about the quantization method; safe to call again.

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
