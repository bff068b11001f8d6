# SPDX-License-Identifier: Apache-2.0
"""Accuracy of quantized models: perplexity and the loss that the 4-bit KV cache adds."""
