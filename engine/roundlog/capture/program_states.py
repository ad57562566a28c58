"""States of a program under construction, and tensors that are known at capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import MAX_LITERAL, Builder, Value
from roundlog.capture.errors import CaptureError
from roundlog.data import materialized
from roundlog.program import DType, TensorType


class ProgramStates:
    """States of a program: those that a step reads or keeps, and behind them constants that are too large for a
    literal, which no step changes."""

    def __init__(self, builder: Builder, own: Mapping[str, torch.Tensor]) -> None:
        """own: the states that steps read or keep, before the first one, by name, in program order."""
        self._builder = builder
        self.own = dict(own)
        self._slots = {name: slot for slot, name in enumerate(own)}
        self._constants: dict[object, tuple[Value, torch.Tensor]] = {}

    def value(self, name: str) -> Value:
        """One of the steps' own states, before a step."""
        return self._state(self._slots[name], self.own[name])

    def literal(self, tensor: torch.Tensor) -> Value:
        """A tensor that is known at capture: written into the program, or, if it is large, a state that stays. Raises
        CaptureError for one without numbers."""
        if tensor.is_meta:
            raise CaptureError(
                "the step uses a tensor on the meta device, where tensors have no numbers: load its values first"
            )
        tensor = materialized(tensor)
        if tensor.dtype == torch.float64:
            tensor = tensor.to(torch.float32)
        elif not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
        if tensor.numel() <= MAX_LITERAL:
            return self._builder.literal(tensor)
        tensor = tensor.cpu().contiguous()
        key = (tensor.shape, tensor.dtype, tensor.view(torch.uint8).numpy().tobytes())
        if key not in self._constants:
            self._constants[key] = self._state(len(self.own) + len(self._constants), tensor), tensor
        return self._constants[key][0]

    def _state(self, slot: int, tensor: torch.Tensor) -> Value:
        return self._builder.source_op("state", TensorType(tuple(tensor.shape), DType.of(tensor.dtype)), slot=slot)

    def initial(self) -> dict[str, torch.Tensor]:
        """All states before the first step, by name, in program order."""
        constants = {f"constant/{number}": tensor for number, (_, tensor) in enumerate(self._constants.values())}
        return {**self.own, **constants}

    def constants(self) -> list[Value]:
        """The states that no step changes."""
        return [value for value, _ in self._constants.values()]


class NodeValues(dict[fx.Node, Any]):
    """Meaning of each graph node: a value, a tuple of them, or, where it was computed at capture, the tensor itself,
    until an operator of the program needs it."""

    def __init__(self, states: ProgramStates) -> None:
        super().__init__()
        self._states = states

    def value(self, node: fx.Node) -> Any:
        """Values of the program that a graph node stands for."""
        value = self[node]
        if isinstance(value, torch.Tensor):
            value = self[node] = self._states.literal(value)
        return value
