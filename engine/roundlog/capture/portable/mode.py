"""Tensors of a task that is being made, computed the same on every machine.

Scripts and roots are published together, but PyTorch's kernels choose their instructions by the processor: normal and
orthogonal weights, means, exponentials end in other bits elsewhere. While `portable` lasts, what is drawn comes from
Philox (`distributions`), what is computed in FP32 is rounded correctly, as programs compute it (`one_operator`), and
what cannot be had so is noted, with the line that asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.capture.draws import draws
from roundlog.capture.lines import place_of_call
from roundlog.capture.portable.exact_operators import EXACT, INTEGERS
from roundlog.capture.portable.own_arithmetic import OWN
from roundlog.capture.portable.own_draws import DRAWN
from roundlog.capture.tracing.out_forms import returning

_CPU = torch.device("cpu")


class PortableNumbers(TorchDispatchMode):
    """While this is active, operators on the CPU give the same bits on every machine, or are noted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        outer = _active.get()
        self.is_paused = False
        self.unportable: dict[str, str] = {} if outer is None else outer.unportable
        """Operator that PyTorch computed itself, with bits of this machine -> ` (at net.py:12)`, where it was first."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused or _is_torchs.get() or not isinstance(func, OpOverload) or not _is_here(args, kwargs):
            return func(*args, **kwargs)
        if (found := returning(func)) is not None:  # op(x, out=y)
            plain, names, _ = found
            written = [kwargs[name] for name in names]
            rest = {key: value for key, value in kwargs.items() if key not in names}
            own = self._own(plain, args, rest)
            if own is None:
                return func(*args, **kwargs)
            for target, result in zip(written, [own] if isinstance(own, torch.Tensor) else own, strict=True):
                target.resize_(result.shape).copy_(result)
            return written[0] if len(written) == 1 else tuple(written)
        plain = _without_underscore(func)
        own = self._own(plain, args, kwargs)
        if own is None:
            return func(*args, **kwargs)
        return args[0].copy_(own) if _is_in_place(func) else own

    def _own(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result of an operator by our means; None if PyTorch's are as good, or there are no others."""
        base = str(func).removeprefix("aten.").partition(".")[0].removesuffix("_")
        if draws(func):
            make = DRAWN.get(base)
            result = None if make is None else make(_bound(func, args, kwargs))
            if result is None and base not in INTEGERS:
                self._note(func)
            return result
        if (own := OWN.get(base)) is not None:
            result = own(_bound(func, args, kwargs))
            if result is not NotImplemented:
                return result
        if base in EXACT or (func._schema.is_mutable and not _has_fractions((args, kwargs))):
            return None
        if not func._schema.is_mutable:
            if not _has_fractions((args, kwargs)) and not _has_fractions(made := func(*args, **kwargs)):
                return made
            from roundlog.capture.portable.one_operator import by_program  # which evaluates constants by this mode

            try:
                with torchs_own():
                    return by_program(func, args, kwargs)
            except NotImplementedError:
                pass
        self._note(func)
        return None

    def _note(self, func: OpOverload) -> None:
        self.unportable.setdefault(str(func).rpartition(".")[0], place_of_call())


_active: ContextVar[PortableNumbers | None] = ContextVar("roundlog.capture.portable", default=None)
_is_torchs: ContextVar[bool] = ContextVar("roundlog.capture.torchs", default=False)


@contextmanager
def portable() -> Iterator[PortableNumbers | None]:
    """While this lasts, tensors that are made in this thread have the same bits on every machine, as a task's should
    until `Job.from_task`. Random numbers are others than PyTorch's own for the same seed. Gives what notes the
    operators of which this is not true; None inside `torchs_own`. Can stand before a function, as `@portable()`."""
    if _is_torchs.get():
        yield None
        return
    if (outer := _active.get()) is not None:
        yield outer
        return
    numbers = PortableNumbers()
    token = _active.set(numbers)
    try:
        with numbers:
            yield numbers
    finally:
        _active.reset(token)


@contextmanager
def torchs_own() -> Iterator[None]:
    """While this lasts, `portable` does nothing: tensors have the bits that PyTorch's kernels give on this machine."""
    token = _is_torchs.set(True)
    try:
        yield
    finally:
        _is_torchs.reset(token)


@contextmanager
def paused() -> Iterator[None]:
    """While this lasts, a `portable` around it does nothing: a step is traced, or run as its user would run it."""
    outer = _active.get()
    if outer is None:
        yield
        return
    was_paused, outer.is_paused = outer.is_paused, True
    try:
        yield
    finally:
        outer.is_paused = was_paused


def _is_here(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator computes with plain tensors on the CPU."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    return all(
        not isinstance(x, FakeTensor) and x.device == _CPU and x.layout == torch.strided and not x.is_nested
        for x in tensors
    )


def _has_fractions(things: Any) -> bool:
    """Whether tensors of floating point are among them."""
    tensors = (leaf for leaf in tree_leaves(things) if isinstance(leaf, torch.Tensor))
    return any(x.is_floating_point() or x.is_complex() for x in tensors)


def _is_in_place(func: OpOverload) -> bool:
    name = func._schema.name.removeprefix("aten::")
    return func._schema.is_mutable and name.endswith("_") and not name.startswith("_")


def _without_underscore(func: OpOverload) -> OpOverload:
    """The overload that returns what this one writes into its first argument; itself for any other."""
    if not _is_in_place(func):
        return func
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::")[:-1], None)
    overload = func._overloadname
    if packet is None or overload not in packet.overloads():
        return func
    found: OpOverload = getattr(packet, overload)
    return found


def _bound(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Argument name -> what a call gives for it, or its default."""
    bound = {}
    for position, argument in enumerate(func._schema.arguments):
        # The default of randperm's dtype is a number.
        default = argument.default_value if argument.has_default_value() and argument.name != "dtype" else None
        bound[argument.name] = args[position] if position < len(args) else kwargs.get(argument.name, default)
    return bound
