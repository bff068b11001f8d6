# SPDX-License-Identifier: Apache-2.0
"""Texts as declared resources: where they come from and how they are read."""
