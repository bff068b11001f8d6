# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a GPU: tensors that say they are on it and are computed on the processor.

What a GPU refuses is refused here too: an operation whose tensors lie on both sides. Numbers are
those of the processor, so a run on the stand-in gives the codes of a run without it, but for what
torch itself computes another way off the processor.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

aten = torch.ops.aten
# The only operations that may read from both sides; a GPU's tensors take indices of the processor.
CROSSING = {aten.copy_.default, aten._to_copy.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
MATH_ATTENTION = 0
NAME = "standin"


class _Module(_DummyBackendModule):
    def is_available(self) -> bool:
        return False


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return False


# Known, but not available: other tests of this process shall not find a GPU.
_setup_privateuseone_for_python_backend(NAME, _Module(), _Hook())


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU; ``kept`` is where it really is."""

    @staticmethod
    def __new__(cls, kept: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            kept.shape,
            strides=kept.stride(),
            storage_offset=kept.storage_offset(),
            dtype=kept.dtype,
            device=f"{NAME}:0",
        )

    def __init__(self, kept: torch.Tensor) -> None:
        self.kept = kept

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        # ``data`` goes round the dispatcher.
        if func == torch.Tensor.data.__get__:
            return OnGpu(args[0].kept)
        if func == torch.Tensor.data.__set__:
            args[0].kept = _kept(args[1])
        # The inherited one would make results on the processor members of this class.
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class StandInGpu(TorchDispatchMode):
    """Within it, the device ``NAME`` exists.

    Attributes:
        calls: how often each operation ran on the stand-in; close to the launches of a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = _run(func, args, kwargs or {})
        if any(isinstance(part, OnGpu) for part in tree_flatten((args, result))[0]):
            self.calls[str(func)] += 1
        return result


def _run(func, args: tuple, kwargs: dict):
    """The operation on the kept tensors; what it makes is on the GPU where its operands are."""
    flat = tree_flatten((args, kwargs))[0]
    known = {id(x.kept): x for x in flat if isinstance(x, OnGpu)}
    plain = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, OnGpu)]
    if known:
        _check_sides(func, args, [x for x in plain if x.dim()])
    if func is aten._fused_sdp_choice.default:
        return MATH_ATTENTION
    asked = kwargs.get("device")
    to_gpu = bool(known) if asked is None else torch.device(asked).type == NAME
    if func is aten.copy_.default:
        to_gpu = isinstance(args[0], OnGpu)
    if asked is not None and to_gpu:
        kwargs = kwargs | {"device": torch.device("cpu")}
    kept_args, kept_kwargs = tree_map(_kept, (args, kwargs))
    result = func(*kept_args, **kept_kwargs)

    def wrapped(part):
        if not isinstance(part, torch.Tensor) or not to_gpu:
            return part
        return known[id(part)] if id(part) in known else OnGpu(part)

    return tree_map(wrapped, result)


def _check_sides(func, args: tuple, plain: list[torch.Tensor]) -> None:
    if func in CROSSING or not plain:
        return
    if func in INDEXED and isinstance(args[0], OnGpu):
        plain = [x for x in plain if x is args[0] or (len(args) > 2 and x is args[2])]
    if plain:
        raise RuntimeError(
            f"{func}: expected all tensors on one device, found {NAME} and cpu "
            f"{[list(x.shape) for x in plain]}"
        )


def _kept(part):
    return part.kept if isinstance(part, OnGpu) else part
