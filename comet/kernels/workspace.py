# SPDX-License-Identifier: Apache-2.0
"""Device memory that thread blocks of one launch share: partial sums, and flags left at zero."""

import ctypes

import torch
from torch import Tensor

from comet.kernels.calls import current_stream
from comet.kernels.library import Library


class Workspace:
    """Sums and flags of one stream. Kernels of a stream run one after another and leave the flags
    zero, so that they share it; a larger request replaces it and keeps the old one alive.

    Args:
        device: where the memory is.
        flags: reserved at once; None: as many as are asked for, whenever that is.
    """

    def __init__(self, device: torch.device, flags: int | None = None) -> None:
        self._device, self._fixed = device, flags is not None
        self._kept: list[Tensor] = []
        self._sums = torch.empty(0, dtype=torch.uint8, device=device)
        self._flags = torch.zeros(flags or 0, dtype=torch.int32, device=device)

    def sums(self, size: int) -> int:
        """Address of at least ``size`` bytes."""
        if self._sums.numel() < size:
            self._kept.append(self._sums)
            self._sums = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._sums.data_ptr()

    def flags(self, count: int) -> int:
        """Address of at least ``count`` zeros, int32.

        Raises:
            RuntimeError: more than were reserved.
        """
        if self._flags.numel() < count:
            if self._fixed:
                raise RuntimeError(f"{count} flags wanted, {self._flags.numel()} reserved")
            self._kept.append(self._flags)
            self._flags = torch.zeros(max(count, 2048), dtype=torch.int32, device=self._device)
        return self._flags.data_ptr()


_workspaces: dict[tuple[torch.device, int, int], Workspace] = {}
_of_graphs: dict[torch.device, Workspace] = {}
# Thread blocks of the largest launch times what each has of them, with room to spare; 1 MB.
GRAPH_FLAGS = 1 << 18


def share_between_graphs(device: torch.device) -> None:
    """Give all graphs captured on ``device`` from now on one workspace; safe to call again.

    For programs that replay their graphs one after another, as vLLM does: hundreds of graphs would
    each keep the partial sums of their own largest launch. The flags are zeroed here, since what
    is zeroed during a capture is zero only after that graph has run.
    """
    if device not in _of_graphs:
        _of_graphs[device] = Workspace(device, GRAPH_FLAGS)


def workspace_of(library: Library, device: torch.device) -> Workspace:
    """The workspace of a stream, or of a graph capture: graphs may replay on other streams."""
    stream, capture = current_stream(device), ctypes.c_uint64()
    identify = library.function(
        "comet_capture_id", ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)
    )
    library.check(identify(stream, ctypes.byref(capture)), "comet_capture_id")
    if capture.value and device in _of_graphs:
        return _of_graphs[device]
    key = (device, stream, capture.value)
    if key not in _workspaces:
        _workspaces[key] = Workspace(device)
    return _workspaces[key]
