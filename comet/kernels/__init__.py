# SPDX-License-Identifier: Apache-2.0
"""Torch operators over ``csrc/``, each beside its exact reference in plain torch."""
