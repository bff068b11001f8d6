# SPDX-License-Identifier: Apache-2.0
"""COMET inside the frameworks that people run; each module imports its framework only."""

from importlib import import_module

_PLACES = {
    "quantize": "comet.integrations.transformers",
    "FMPQConfig": "comet.integrations.transformers",
    "KV4Cache": "comet.integrations.kv4_cache",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str):
    """Load a framework when something of it is asked for: vLLM's plugin must not load all."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
