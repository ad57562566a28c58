"""Operators on lists of tensors (`torch._foreach_lerp_`, ...), one tensor after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_PREFIX = "_foreach_"
_NAMES = (
    *("abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy", "div", "exp", "lerp", "log", "mul", "neg"),
    *("reciprocal", "rsqrt", "sign", "sqrt", "sub", "zero"),
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For `make_fx`."""
    found = {}
    for name in (*_NAMES, *(f"{name}_" for name in _NAMES)):
        single = getattr(torch.Tensor, name, None)
        if single is None:
            continue
        packet = getattr(torch.ops.aten, _PREFIX + name)
        for overload in packet.overloads():
            if not overload.endswith("out"):
                found[getattr(packet, overload)] = _one_by_one(single)
    return found


def _one_by_one(single: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor] | None]:
    """A method of single tensors, called for every tensor of a list."""
    name = single.__name__

    def apply(tensors: Sequence[torch.Tensor], *others: Any, **kwargs: Any) -> list[torch.Tensor] | None:
        args = list(others)
        if name.startswith("addc") and len(args) == 3:
            kwargs = {"value": args.pop()}
        results = [
            single(tensor, *(_item(argument, number) for argument in args), **_items(kwargs, number))
            for number, tensor in enumerate(tensors)
        ]
        return None if name.endswith("_") else results

    return apply


def _items(arguments: dict[str, Any], number: int) -> dict[str, Any]:
    return {name: _item(argument, number) for name, argument in arguments.items()}


def _item(argument: Any, number: int) -> Any:
    return argument[number] if isinstance(argument, (list, tuple)) else argument
