# SPDX-License-Identifier: Apache-2.0
"""Linears that read one input round it once: the queries, keys and values of attention, say."""

from collections.abc import Callable

import torch


class SharedInput:
    """Keeps the rounded input of the first of several linears until the last one has read it.

    Args:
        readers: linears that read the same tensor one after another and round it alike.
    """

    def __init__(self, readers: int) -> None:
        self.readers = readers
        self._forget()

    def rounded(
        self, x: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """``make(x)``, or what it gave when the linear before asked with the same ``x``."""
        # Tensors of inference mode have no version.
        version = None if x.is_inference() else x._version
        if self._input is not x or self._version != version:
            self._input, self._version, self._left = x, version, self.readers
            self._rounded = make(x)
        rounded, self._left = self._rounded, self._left - 1
        if self._left == 0:
            self._forget()
        return rounded

    def _forget(self) -> None:
        self._input = self._rounded = self._version = None
        self._left = 0
