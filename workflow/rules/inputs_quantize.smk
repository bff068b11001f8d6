# SPDX-License-Identifier: Apache-2.0
"""Input and parameter functions of the rules that quantize models."""


def checkpoint_options(wildcards):
    return configuration.fmpq_section(config, wildcards.checkpoint)


def token_weights(asked, model):
    """Where a quantization asks for `end_loss`, the weights of the calibration tokens."""
    return [result_path("token_weights", f"{model}.safetensors")] if asked else []


def checkpoint_weights(wildcards):
    asked = checkpoint_options(wildcards).get("end_loss", False)
    return token_weights(asked, wildcards.model)


def method_settings(wildcards):
    return config["methods"].get(wildcards.method, {})


def method_weights(wildcards):
    asked = method_settings(wildcards).get("end_loss", False)
    return token_weights(asked, wildcards.model)
