# SPDX-License-Identifier: Apache-2.0
"""FMPQ, the paper's fine-grained mixed-precision quantization (section 3.2), step by step."""
