# SPDX-License-Identifier: Apache-2.0
"""comet: a reproducibility and evaluation harness for COMET (ASPLOS 2025)."""

__version__ = "0.1.0"
