"""Operators that write their result into tensors that they are given (`out=`), as the operator and a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_call

_MADE = frozenset(["dtype", "layout", "device", "pin_memory"])
"""Options that an operator has only where it makes its result itself."""


class OutVariants(TorchDispatchMode):
    """While this is active, `op(x, out=y)` is traced as `y.copy_(op(x))`, so that nothing after it has to know of
    results that are written. Raises CaptureError for a result of another shape than `out`, which PyTorch would give
    other memory to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = returning(func) if isinstance(func, OpOverload) else None
        if found is None:
            return func(*args, **kwargs)
        plain, names, made = found
        written = [kwargs[name] for name in names]
        options = {key: value for key, value in kwargs.items() if key not in names}
        # Sums and new tensors are computed in the dtype of the tensor that they are written into.
        if "dtype" in made and options.get("dtype") is None:
            options["dtype"] = written[0].dtype
        if "device" in made:
            options["device"] = written[0].device
        results = plain(*args, **options)
        for target, result in zip(written, [results] if len(written) == 1 else results, strict=True):
            if target.shape != result.shape:
                raise CaptureError(
                    f"the operator {func}{place_of_call()} writes a result of shape {list(result.shape)} into an out= "
                    f"of shape {list(target.shape)}: give it an out= of the result's shape, or take what it returns"
                )
            target.copy_(result)
        return written[0] if len(written) == 1 else tuple(written)


@functools.cache
def returning(func: OpOverload) -> tuple[OpOverload, tuple[str, ...], frozenset[str]] | None:
    """The overload that returns what this one writes into its `out` arguments, the names of these, and the options
    that only the other one has. None for an overload that has no such arguments, or no such counterpart."""
    arguments = func._schema.arguments
    outs = tuple(one.name for one in arguments if one.is_out)
    if not outs:
        return None
    wanted = [(one.name, str(one.type)) for one in arguments if not one.is_out]
    packet = func.overloadpacket
    for overload in packet.overloads():
        plain = getattr(packet, overload)
        if plain._schema.is_mutable or len(plain._schema.returns) != len(outs):
            continue
        own = {one.name: str(one.type) for one in plain._schema.arguments}
        extra = own.keys() - {name for name, _ in wanted}
        if extra <= _MADE and [(name, kind) for name, kind in own.items() if name not in extra] == wanted:
            has_dtype = {"dtype"} & own.keys()
            return plain, outs, frozenset(extra | has_dtype)
    return None
