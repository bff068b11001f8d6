# SPDX-License-Identifier: Apache-2.0
"""Decoder models: families, folders, declared sources, shapes, and walking layer by layer."""
