"""The tensors of a user's step, replaced by those of the trace, below autograd.

No operator shows an assignment to a tensor's `.data`, or a read of its memory. An assignment gives a tensor other
memory and leaves the old memory to other tensors that have it. So a parameter or another state stands for what is
assigned from then on, and tensors that were taken of it before for what they were. A read (`.tolist()`, `.numpy()`,
`copy.deepcopy`) would find numbers that happened to stand there at capture: it gets the tensor of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_call
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
