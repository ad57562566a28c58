"""The tensors of a user's step, replaced by those of the trace, below autograd.

The user's code goes on holding its own parameters and buffers, wherever it keeps them: in modules, lists, closures or
saved for the backward pass. Only where an operator is computed, the tensor that the trace stands it for is taken. So
everything above (modules, autograd, hooks, checkpointing) runs as it does in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_call
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
