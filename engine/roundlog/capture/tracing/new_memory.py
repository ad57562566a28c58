"""Assignments to a tensor's `.data`, and reads of its memory, which no operator shows.

An assignment gives a tensor other memory and leaves the old memory to other tensors that have it. So a parameter or
another state stands for what is assigned from then on, and tensors that were taken of it before for what they were.
A read (`.tolist()`, `.numpy()`, `copy.deepcopy`) would find numbers that happened to stand there at capture: it gets
the tensor of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_call
from roundlog.capture.task import STORED
from roundlog.capture.tracing.carried import MoreStateError
from roundlog.capture.tracing.logged import UnseenText
from roundlog.capture.tracing.substitution import Substitution


class NewMemory(TorchFunctionMode):
    """While this is active, `tensor.data = ...` is followed for tensors that are state, and refused for others, and
    reads of memory find the tensors of the trace."""

    def __init__(self, substitution: Substitution, around: Mapping[int, tuple[str, torch.Tensor]]) -> None:
        """around: id -> (name, tensor), of those that may have to be state."""
        super().__init__()
        self._substitution = substitution
        self._around = around
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
        name, known = self._around.get(id(tensor), ("", None))
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
