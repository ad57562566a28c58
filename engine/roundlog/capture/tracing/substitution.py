"""The tensors of a user's step, replaced by those of the trace, below autograd; and parts of them at places that values
decide.

No operator shows an assignment to a tensor's `.data`, or a read of its memory. An assignment gives a tensor other
memory and leaves the old memory to other tensors that have it. So a parameter or another state stands for what is
assigned from then on, and tensors that were taken of it before for what they were. A read (`.tolist()`, `.numpy()`,
`copy.deepcopy`) would find numbers that happened to stand there at capture: it gets the tensor of the trace.

A view begins at a place that is known. So a part whose place is not known, `x[:, top : top + 4]` with a number that
the step draws, is a copy, gathered by index; what is assigned to it is written to the places that such a gathering
would find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from roundlog.capture.constants import node_of
from roundlog.capture.errors import CaptureError, place_of_call
from roundlog.capture.python_state import MoreStateError, UnseenText
from roundlog.capture.task import STORED
from roundlog.capture.tracing.eager import LEFT_BEHIND
from roundlog.data import is_lazy_view, reach


class Substitution(TorchDispatchMode):
    """While this is active, operators compute with `replacement[name]` where they are given `originals[name]`, or a
    tensor that shares memory with it."""

    def __init__(self, originals: Mapping[str, torch.Tensor], forbidden: Mapping[str, torch.Tensor]) -> None:
        """forbidden: name -> tensor that a step may not reach but through its arguments (the whole dataset)."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[int, str] = {}
        self._originals = dict(originals)
        self._forbidden = {_memory(tensor): name for name, tensor in forbidden.items() if tensor.numel()}
        self._known: dict[int, torch.Tensor] = {}
        self._held: list[torch.Tensor] = []
        self._used: set[int] = set()
        self.constants: set[int] = set()
        """Ids of the tensors that operators were given since `begin` and that share no memory with originals."""
        self._replacements: dict[str, torch.Tensor] = {}
        self._modes: list[FakeTensorMode] = []

    def begin(self, replacements: Mapping[str, torch.Tensor]) -> None:
        """Substitutes of the originals from now on. They may have got other memory since the last time."""
        self._names = {_memory(tensor): name for name, tensor in self._originals.items() if tensor.numel()}
        self._replacements = dict(replacements)
        self._modes = [tensor.fake_mode for tensor in replacements.values() if isinstance(tensor, FakeTensor)][:1]
        self._known = {id(self._originals[name]): tensor for name, tensor in replacements.items()}
        self._used, self.constants = set(), set()

    def add(self, name: str, original: torch.Tensor) -> None:
        """Another original, or another tensor in the place of one, from the next step on."""
        self._originals[name] = original

    def now(self, name: str) -> torch.Tensor:
        """The tensor that stands for an original by now."""
        return self._replacements[name]

    def is_original(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of the originals."""
        return any(original is tensor for original in self._originals.values())

    def gets_memory(self, original: torch.Tensor, value: torch.Tensor) -> bool:
        """Has an original stand for another tensor from now on, as by `original.data = value`. Gives whether it can: it
        is an original, nothing else shares memory with either, and the shapes are the same."""
        names = [name for name, tensor in self._originals.items() if tensor is original and name in self._replacements]
        if len(names) != 1 or not issubclass(type(value), torch.Tensor):
            return False
        memory = _memory(original)
        if sum(_memory(tensor) == memory for tensor in self._originals.values()) != 1:
            return False
        new = value.detach()
        new = new if isinstance(new, FakeTensor) else new.clone()
        held = {_memory(tensor) for tensor in self._replacements.values()}
        if (new.shape, new.dtype) != (original.shape, original.dtype) or _memory(new) in held:
            return False
        self._known[id(original)] = self._replacements[names[0]] = new
        return True

    def has_used(self, tensor: torch.Tensor) -> bool:
        """Whether an operator was given this very tensor since `begin`."""
        return id(tensor) in self._used

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Substitute of a tensor: itself, if it is none of the originals. Raises CaptureError for a view of an original
        that cannot be expressed."""
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode not in self._modes:
                raise CaptureError(LEFT_BEHIND + place_of_call())
            return tensor
        if tensor.layout != torch.strided:
            return tensor
        self._used.add(id(tensor))
        if id(tensor) in self._known:
            return self._known[id(tensor)]
        name = self._names.get(_memory(tensor))
        if name is None:
            if field := self._forbidden.get(_memory(tensor)):
                raise CaptureError(
                    f"the step reads the dataset field {field} other than by its batch: take batch[{field!r}]"
                )
            self.constants.add(id(tensor))
            return tensor
        if is_lazy_view(tensor):
            raise CaptureError(
                f"a lazy negative or conjugate shares memory with {name}{place_of_call()}: make it inside the step, or "
                "make it a copy (.clone())"
            )
        found = self._view(name, tensor)
        self._known[id(tensor)] = found
        self._held.append(tensor)  # so that its id stays its own
        return found

    def _view(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        original, replacement = self._originals[name], self._replacements[name]
        if _geometry(tensor) == _geometry(original):
            return replacement
        whole = original.is_contiguous() and replacement.is_contiguous() and tensor.dtype == original.dtype
        first = tensor.storage_offset() - original.storage_offset()
        if not whole or first < 0 or first + reach(tensor) >= original.numel():
            raise CaptureError(
                f"a tensor of shape {list(tensor.shape)} shares memory with {name} in a way that cannot be followed: "
                "make it a view of the parameter inside the step, or a copy"
            )
        return replacement.as_strided(tensor.shape, tensor.stride(), first)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self.of, (args, kwargs or {}))
        return func(*args, **kwargs)


def tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """name -> the first name of a tensor with the same elements at the same place in memory. Raises CaptureError for
    tensors that share memory in another way."""
    first: dict[object, str] = {}
    result = {}
    for name, tensor in tensors.items():
        other = first.setdefault(_memory(tensor), name) if tensor.numel() else name
        if _geometry(tensors[other]) != _geometry(tensor):
            raise CaptureError(
                f"{name} shares memory with {other}, but not all of it: make one a copy, or compute one from the other "
                "inside the step"
            )
        result[name] = other
    return result


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


class NewMemory(TorchFunctionMode):
    """While this is active, `tensor.data = ...` is followed for tensors that are state, and refused for others, and
    reads of memory find the tensors of the trace."""

    def __init__(self, substitution: Substitution, reachable: Mapping[int, tuple[str, torch.Tensor]]) -> None:
        """reachable: id -> (name, tensor), of those that may have to be state."""
        super().__init__()
        self._substitution = substitution
        self._reachable = reachable
        self._more: dict[str, torch.Tensor] = {}
        self.refused: list[CaptureError] = []
        """Error that was raised, whether or not the user's code has caught it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            if self._substitution.gets_memory(*args) or self._has_to_be_state(args[0]):
                return None
            self.refused.append(
                CaptureError(
                    f"the step assigns to the .data of a tensor{place_of_call()} that is no state, or shares memory "
                    "with another one, or what is assigned does, or has another shape: write into it by .copy_() under "
                    "torch.no_grad(), or assign a copy (.clone())"
                )
            )
            raise self.refused[-1]
        if func in _READS:
            return self._read(func, self._substitution.of(args[0]), args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _read(self, func: Callable[..., Any], tensor: torch.Tensor, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Result of a function that reads the memory of its first argument. tensor: that of the trace."""
        is_traced = isinstance(tensor, FakeTensor)
        if func == torch.Tensor.__deepcopy__ and args[0].is_leaf:
            with torch.no_grad():
                copy = args[1].get(id(args[0]), tensor.clone())
            args[1][id(args[0])] = copy
            return copy.requires_grad_(args[0].requires_grad)
        if func == torch.Tensor.__repr__ and is_traced:
            return UnseenText("?")
        if func == torch.Tensor.__dlpack__ and is_traced:
            self.refused.append(
                CaptureError(f"the step gives a tensor away by DLPack{place_of_call()}: use the tensor itself")
            )
            raise self.refused[-1]
        return func(tensor, *args[1:], **kwargs)

    def _has_to_be_state(self, tensor: torch.Tensor) -> bool:
        """Whether it is a tensor of the user's that is no state yet. The trace goes on to find all of them."""
        name, known = self._reachable.get(id(tensor), ("", None))
        if known is not tensor or self._substitution.is_original(tensor) or tensor.dtype not in STORED:
            return False
        if not self._more:
            self.refused.append(MoreStateError("a step assigns to .data of tensors", tensors=self._more))
        self._more[f"attribute/{name}"] = tensor
        return True


_READS = (
    *(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__),
    *(torch.Tensor.__deepcopy__, torch.Tensor.__dlpack__),
)
"""Functions of a tensor that read its memory without an operator."""


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
                    "the step writes into a tensor after taking a part of it at a place that depends on values"
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
