# SPDX-License-Identifier: Apache-2.0
"""How Python calls the library: argument structs, addresses, the stream, and the status.

A launcher takes a pointer to one struct, whose first member is its size, and a stream.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from comet.kernels.library import Library, load_for

SIZE = ("size", ctypes.c_uint32)


def fields(kind: type, *names: str) -> tuple[tuple[str, type], ...]:
    """Members of one C type, for ``_fields_`` of a struct."""
    return tuple((name, kind) for name in names)


def address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's first element; null for no tensor and for an empty one."""
    return None if tensor is None else tensor.data_ptr() or None


def current_stream(device: torch.device) -> int:
    """Handle of the stream that torch is using on ``device``."""
    return torch.cuda.current_stream(device).cuda_stream


def launch(name: str, arguments: ctypes.Structure, device: torch.device) -> None:
    """Call the launcher ``name`` on the device's current stream; fills in the struct's size.

    Raises:
        UserError: the library is missing, stale or not built for the device.
        RuntimeError: the launcher refused or failed; says why.
    """
    library = load_for(device)
    arguments.size = ctypes.sizeof(arguments)
    launcher = library.function(name, ctypes.POINTER(type(arguments)), ctypes.c_void_p)
    with torch.cuda.device(device):
        library.check(launcher(ctypes.byref(arguments), current_stream(device)), name)


def described(library: Library, family: str, kind: type[ctypes.Structure]) -> Sequence:
    """What the library says of its kernel instances, in the order of their index.

    Args:
        library: read are its functions ``<family>_instances`` and ``<family>_instance``.
        family: such as ``comet_w4ax``.
        kind: struct of one description.
    """
    describe = library.function(f"{family}_instance", ctypes.c_int, ctypes.POINTER(kind))
    found = []
    for index in range(library.function(f"{family}_instances")()):
        found.append(kind())
        library.check(describe(index, ctypes.byref(found[-1])), f"{family}_instance")
    return found
