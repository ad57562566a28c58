"""Parts of tensors at places that values decide: `x[:, top : top + 4]` with a number that the step draws.

A view begins at a place that is known. So a part whose place is not known is a copy, gathered by index; what is
assigned to it is written to the places that such a gathering would find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from roundlog.capture.constants import node_of
from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_call


class PartsByNumbers(TorchFunctionMode):
    """While this is active, tensors may be indexed and cut by numbers that the step takes out of tensors, as long as
    the size of what is cut is known. An index outside of its axis stops the run."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, _Copy] = {}
        """By id."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.__getitem__ and _is_by_numbers(args[1]):
            part = _part(args[0], args[1])
            if (node := node_of(part)) is not None:
                self._copies[id(part)] = _Copy(part, args[0], args[1], args[0]._version, node.name, place_of_call())
            return part
        if func == torch.Tensor.__setitem__ and _is_by_numbers(args[1]):
            x, index, value = args
            copy = self._copies.get(id(value))
            if copy is not None and copy.base is x and copy.index is index:  # x[i] += 1 writes, and then assigns
                del self._copies[id(value)]
            return _assign(x, index, value)
        return func(*args, **(kwargs or {}))

    def refuse_writes(self, names: set[str]) -> None:
        """Raises CaptureError if one of these nodes, which the step writes into, is a copy; or if what a copy was taken
        from has been written since, which a view would show."""
        for copy in self._copies.values():
            if copy.node in names:
                raise CaptureError(
                    f"the step writes into a part of a tensor whose place depends on values{copy.line}: assign to the "
                    "part, as in x[:, top : top + 4] = value"
                )
            if copy.base._version != copy.version:
                raise CaptureError(
                    "the step writes into a tensor of which it has taken a part at a place that depends on values"
                    f"{copy.line}: take the part of a copy (.clone())"
                )


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy where PyTorch has a view."""

    part: torch.Tensor
    base: torch.Tensor
    """Tensor that it is a part of."""
    index: Any
    version: int
    """Version of the base when it was taken."""
    node: str
    """Name of its graph node."""
    line: str
    """The line, in words."""


def _is_by_numbers(index: Any) -> bool:
    return any(_is_number(item) for item in (index if isinstance(index, tuple) else (index,)))


def _is_number(item: Any) -> bool:
    if isinstance(item, slice):
        return any(_is_taken(part) for part in (item.start, item.stop, item.step))
    return _is_taken(item)


def _is_taken(number: Any) -> bool:
    """Whether a number was taken out of a tensor; not the number of the rows that a mask chooses, which PyTorch knows
    to be a size."""
    if type(number) is not torch.SymInt:
        return False
    known = number.node.shape_env
    return known is None or not number.node.expr.free_symbols <= known.size_like


def _part(x: torch.Tensor, index: Any) -> torch.Tensor:
    """A copy of a part."""
    items, axis = _items(x, index), 0
    for number, item in enumerate(items):
        if _is_taken(item):
            x = x.index_select(axis, _tensor_of(item).reshape(1))
            items[number] = 0
        elif _is_number(item):
            size = _size(item)
            x = x.index_select(axis, _tensor_of(item.start) + torch.arange(size))
            items[number] = slice(None)
        axis += _axes(item)
    return x[tuple(items)]


def _items(x: torch.Tensor, index: Any) -> list[Any]:
    """The items of an index without an ellipsis."""
    items = list(index) if isinstance(index, tuple) else [index]
    for number, item in enumerate(items):
        if item is Ellipsis:
            items[number : number + 1] = [slice(None)] * (x.ndim - sum(map(_axes, items)))
            break
    return items


def _axes(item: Any) -> int:
    """Number of axes that an item of an index stands for."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.ndim if is_mask else 1


def _size(item: slice) -> int:
    size = None if item.start is None or item.stop is None else item.stop - item.start
    node = getattr(size, "node", None)
    size = size if node is None else node.maybe_as_int()
    if item.step not in (None, 1) or size is None or size < 0:
        raise CaptureError(
            f"the step cuts a tensor to a size that depends on values{place_of_call()}: cut it to a size that is "
            "known, as in x[:, top : top + 4], or choose elements with torch.where"
        )
    return int(size)


def _tensor_of(number: Any) -> torch.Tensor:
    return torch.scalar_tensor(number, dtype=torch.int64)


def _assign(x: torch.Tensor, index: Any, value: Any) -> None:
    """x[index] = value."""
    items = _items(x, index)
    if any(isinstance(item, (torch.Tensor, list)) for item in items):
        raise CaptureError(
            f"the step assigns by numbers that it computes and by tensors at once{place_of_call()}: choose by "
            "torch.where, or index by one after the other"
        )
    whole = [slice(None) if _is_number(item) else item for item in items]
    before = x[tuple(whole)]
    axes, shape, axis = {}, list(before.shape), 0
    for item in items:
        if _is_number(item):
            shape[axis] = 1 if _is_taken(item) else _size(item)
            axes[axis] = item
        axis += 1 if item is None or isinstance(item, slice) or _is_number(item) else 0
    part = [size for axis, size in enumerate(shape) if type(axes.get(axis)) is not torch.SymInt]
    after = torch.as_tensor(value, dtype=x.dtype)
    while after.ndim > len(part):
        after = after.squeeze(0)
    after = after.expand(part).reshape(shape)
    chosen = torch.ones((), dtype=torch.bool)
    for axis, item in axes.items():
        start, own, length = getattr(item, "start", item), torch.arange(shape[axis]), torch.arange(before.shape[axis])
        # An index outside of the axis stops the run here.
        same = length.index_select(0, _tensor_of(start) + own)[:, None] == length
        after = after.index_select(axis, torch.where(same, own[:, None], 0).sum(0))
        chosen = chosen & same.any(0).reshape([-1 if other == axis else 1 for other in range(before.ndim)])
    x[tuple(whole)] = torch.where(chosen, after, before)
