"""The mode of `portable`: operators that give other bits on other machines are computed by `own_numbers`, or noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.capture.errors import place_of_call
from roundlog.capture.portable.own_numbers import OWN, Arguments

_NAMES = """
    _local_scalar_dense _sparse_coo_tensor_with_dims_and_tensors _to_copy _to_dense _unsafe_view abs add all amax amin
    any arange argmax argmin cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy cumprod cumsum diagonal_copy
    div embedding empty empty_like empty_strided eq equal eye fill flip floor floor_divide fmod frac full full_like
    gather ge gt index index_copy index_fill index_put index_select isfinite isinf isnan le lt masked_fill masked_select
    max maximum min minimum mul nan_to_num ne neg new_empty new_full new_ones new_zeros ones ones_like random reciprocal
    relu remainder repeat repeat_interleave resize roll round rsqrt rsub scalar_tensor scatter searchsorted set sgn sign
    sqrt square stack sub topk tril triu trunc where zero zeros zeros_like
"""
_EXACT = frozenset(_NAMES.split())
"""Names without overload, and without the underscore of what writes in place, of operators that move real numbers,
compare them, or compute what IEEE 754 rounds once; `rsqrt` is a root and a division, `cumsum` adds one after the other
in FP64. With a factor (alpha), some machines round once and others twice; what accumulates does so in any order."""


class PortableNumbers(TorchDispatchMode):
    """While this is active, operators on the CPU give the same bits on every machine, or are noted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unportable: dict[str, str] = {}
        """Operator that PyTorch computed itself, with bits of this machine -> ` (at net.py:12)`, where it was first."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        device = torch.device(kwargs.get("device") or "cpu").type
        has_numbers = device != "meta" and not any(isinstance(x, FakeTensor) or x.is_meta for x in tensors)
        if _active.get() is not self or not has_numbers or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        name, given = func._schema.name.removeprefix("aten::"), _bound(func, args, kwargs)
        base, in_place = name.removesuffix("_"), name.endswith("_")
        is_here = device == "cpu" and all(x.is_cpu and x.layout == torch.strided for x in tensors)
        own = OWN[base](given) if is_here and base in OWN else None
        target = args[0] if in_place else given.get("out")
        if own is None or (target is not None and not torch.can_cast(own.dtype, target.dtype)):
            result = func(*args, **kwargs)
            kinds = [x.dtype for x in [*tensors, *tree_leaves(result)] if isinstance(x, torch.Tensor)]
            is_real = base in _EXACT and not any(kind.is_complex for kind in kinds)
            is_exact = func.is_view or (is_real and given.get("alpha", 1) == 1 and not given.get("accumulate"))
            if not is_exact and any(kind.is_floating_point or kind.is_complex for kind in kinds):
                self.unportable.setdefault(f"aten.{base}", place_of_call())
            return result
        if target is None:
            return own
        return (target if in_place else target.resize_(own.shape)).copy_(own)


_active: ContextVar[PortableNumbers | Literal[False] | None] = ContextVar("roundlog.capture.portable", default=None)
"""The mode that counts; False inside `torchs_own`."""


@contextmanager
def _having(mode: PortableNumbers | Literal[False] | None) -> Iterator[None]:
    token = _active.set(mode)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def portable() -> Iterator[PortableNumbers | None]:
    """While this lasts, draws and elementwise functions of this thread have the same bits on every machine, as a task's
    should until `Job.from_task`. Random numbers are others than PyTorch's own for the same seed. Gives the mode, which
    notes the operators that computed with this machine's bits; None inside `torchs_own`. Can stand before a function,
    as `@portable()`."""
    if (outer := _active.get()) is not None:
        yield outer or None
        return
    numbers = PortableNumbers()
    with numbers, _having(numbers):
        yield numbers


def torchs_own() -> AbstractContextManager[None]:
    """While this lasts, `portable` does nothing: tensors have the bits that PyTorch's kernels give on this machine."""
    return _having(False)


def paused() -> AbstractContextManager[None]:
    """While this lasts, a `portable` around it does nothing: a step is traced, or run as its user would run it."""
    return _having(_active.get() and None)


def _bound(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Argument name -> what a call gives for it, or its default; new numbers are of the dtype they are written into."""
    bound = {}
    for position, argument in enumerate(func._schema.arguments):
        # The default of randperm's dtype is a number.
        default = argument.default_value if argument.has_default_value() and argument.name != "dtype" else None
        bound[argument.name] = args[position] if position < len(args) else kwargs.get(argument.name, default)
    out = bound.get("out")
    return {"dtype": None if out is None else out.dtype} | {key: x for key, x in bound.items() if x is not None}
