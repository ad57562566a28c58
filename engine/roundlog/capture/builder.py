"""Builds a program node by node: types inferred by the registry, equal nodes shared, dead ones dropped. Keeps
the program's states, among them tensors too large to be written into it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch

from roundlog.arithmetic import format_of
from roundlog.capture.draws import Draw
from roundlog.capture.errors import CaptureError
from roundlog.data import materialized
from roundlog.operators import operator
from roundlog.operators.movement import MAX_JOINED
from roundlog.program import Attribute, DType, Node, Program, TensorType


def needed(nodes: Sequence[Node], values: Iterable[int], known: Collection[int] = ()) -> set[int]:
    """These values, and all that they are computed from, but for what only known ones are."""
    found, todo = set[int](), list(values)
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            if index not in known:
                todo.extend(nodes[index].inputs)
    return found


MAX_LITERAL = 1 << 10
"""Elements of a literal tensor: what is larger belongs into the state, where a single element can be proven."""


def _pattern(numbers: torch.Tensor) -> tuple[int, ...]:
    """The bits of numbers of a format, [count], with the one NaN that programs have."""
    bits = numbers.contiguous().view(torch.uint8).numpy().view(f"u{numbers.itemsize}")
    nan = format_of(numbers.dtype).nan
    return tuple(nan if missing else int(word) for word, missing in zip(bits, numbers.isnan().tolist(), strict=True))


class Value(int):
    """A value of the program under construction: the index of its node. A type of its own, so that no rule takes a
    tensor for a number."""


class Builder:
    """Collects nodes. `source` is the user's line that following nodes are attributed to."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.source = ""
        self._known: dict[object, Value] = {}
        self.draw: Draw | None = None
        """The call that draws random numbers which is being lowered."""
        self._streams: dict[object, int] = {}
        self._drawn: dict[Draw, int] = {}
        """Number of streams that a call has taken."""
        self.places: dict[Value, int] = {}
        """Places of the values in the finished program."""

    def type(self, value: Value) -> TensorType:
        return self.nodes[value].type

    def shape(self, value: Value) -> tuple[int, ...]:
        return self.nodes[value].type.shape

    def dtype(self, value: Value) -> DType:
        return self.nodes[value].type.dtype

    def op(self, name: str, *inputs: Value, **attributes: Attribute) -> Value:
        """Append an operator, or find the equal one that is there. Raises ProgramError if it does not apply."""
        if name == "cat" and len(inputs) > MAX_JOINED:
            starts = range(0, len(inputs), MAX_JOINED)
            inputs = tuple(self.op("cat", *inputs[start : start + MAX_JOINED], **attributes) for start in starts)
            return self.op("cat", *inputs, **attributes)
        declared = TensorType((), DType.F32)
        kind = operator(name).infer([self.type(value) for value in inputs], attributes, declared)
        return self._add(name, inputs, attributes, kind)

    def source_op(self, name: str, kind: TensorType, **attributes: Attribute) -> Value:
        """Append an operator whose type is declared, not computed: state, data, schedule, constant, iota, uniform."""
        return self._add(name, (), attributes, operator(name).infer([], attributes, kind))

    def _add(self, name: str, inputs: Sequence[Value], attributes: dict[str, Attribute], kind: TensorType) -> Value:
        key = (name, tuple(inputs), tuple(sorted(attributes.items())), kind)
        if key not in self._known:
            self._known[key] = Value(len(self.nodes))
            self.nodes.append(Node(name, tuple(inputs), attributes, kind, self.source))
        return self._known[key]

    def constant(self, item: float | int | bool, dtype: DType, shape: Sequence[int] = ()) -> Value:
        """A tensor filled with one literal, rounded to nearest from the Python float: to FP32, and from there to a
        shorter format, as PyTorch does it."""
        if isinstance(item, Value):
            raise CaptureError("takes a tensor where only a number is supported")
        if dtype.is_float:
            with np.errstate(over="ignore"):
                number = torch.from_numpy(np.array([item], dtype=np.float32))
            bits = _pattern(number.to(dtype.torch_dtype))[0]
        else:
            bits = int(item)
        return self.source_op("constant", TensorType(tuple(shape), dtype), bits=(bits,))

    def literal(self, tensor: torch.Tensor) -> Value:
        """A small literal tensor, of a storage type."""
        assert tensor.numel() <= MAX_LITERAL
        if not tensor.numel():
            # A constant has at least one number, which fills its shape.
            return self.constant(0, DType.of(tensor.dtype), tuple(tensor.shape))
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if tensor.is_floating_point():
            bits = _pattern(flat)
        else:
            bits = tuple(int(b) for b in flat.tolist())
        return self.source_op("constant", TensorType(tuple(tensor.shape), DType.of(tensor.dtype)), bits=bits)

    def uniform(self, shape: Sequence[int]) -> Value:
        """Random numbers in [0, 1): a stream of its own for every state of PyTorch's generator in which they are drawn,
        so that what is drawn again is the same."""
        key: object = len(self._streams)
        if self.draw is not None:
            place = self._drawn.get(self.draw, 0)
            self._drawn[self.draw] = place + 1
            key = (self.draw.state, place, tuple(shape))
        stream = self._streams.setdefault(key, len(self._streams))
        return self.source_op("uniform", TensorType(tuple(shape), DType.F32), stream=stream)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        return value if self.shape(value) == tuple(shape) else self.op("reshape", value, shape=tuple(shape))

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        return value if self.shape(value) == tuple(shape) else self.op("expand", value, shape=tuple(shape))

    def permute(self, value: Value, dims: Sequence[int]) -> Value:
        return value if list(dims) == list(range(len(dims))) else self.op("permute", value, dims=tuple(dims))

    def convert(self, value: Value, dtype: DType) -> Value:
        """A value in another dtype, where the conversion is one that programs have."""
        have = self.dtype(value)
        if have == dtype:
            return value
        if dtype == DType.BOOL:
            zero = self.constant(0, have)
            return self.op("logical_not", self.op("eq", value, zero))
        if dtype.is_float:
            return self._rounded(value, dtype)
        if have == DType.BOOL:
            return self.op("to_i64", value)
        return self.truncated(self.convert(value, DType.F32))

    def _rounded(self, value: Value, dtype: DType) -> Value:
        """A value in another format of numbers."""
        have, node = self.dtype(value), self.nodes[value]
        if have == DType.F32 and node.op == "to_f32" and self.dtype(Value(node.inputs[0])) == dtype:
            return Value(node.inputs[0])  # a number that was only widened
        if have == DType.I64 and dtype != DType.F32:
            value = self._rounded(value, DType.F32)  # PyTorch rounds integers to FP32 first
        return self.op(f"to_{dtype}", value)

    def chosen(self, condition: Value, held: Value, otherwise: Value) -> Value:
        """One of two values of a type, by a bool[]."""
        return held if held == otherwise else self.op("where", condition, held, otherwise)

    def required(self, condition: Value, why: str) -> Value:
        """An f32 that is 1 where the condition (bool) holds; elsewhere the run stops, by an index out of range. It has
        to be a factor of something that is needed. why: what did not hold, for the sentence that the run stops with."""
        source, self.source = self.source, f"{self.source}, {why}".removeprefix(", ")
        index = self.op("where", condition, self.constant(0, DType.I64), self.constant(1, DType.I64))
        one = self.op("take", self.constant(1.0, DType.F32, (1,)), index)
        self.source = source
        return one

    def truncated(self, value: Value) -> Value:
        """An f32 without its fraction (towards zero), as int64. Whatever int64 cannot hold, NaN too, stops the run."""
        inside = self.op(
            "logical_and",
            self.op("le", self.constant(-(2.0**63), DType.F32), value),
            self.op("lt", value, self.constant(2.0**63, DType.F32)),
        )
        value = self.op("mul", value, self.required(inside, "a number that int64 does not hold"))
        size = self.natural(self.op("abs", value), 64)
        negative = self.op("lt", value, self.constant(0.0, DType.F32))
        return self.op("where", negative, self.op("neg", size), size)

    def natural(self, value: Value, bits: int) -> Value:
        """An f32 in [0, 2^bits) without its fraction, as int64: bit k is floor(x / 2^k) - 2 floor(x / 2^(k + 1)), which
        is exact; eight bits at a time along a new axis. bits: at most 64 (modulo 2^64)."""
        shape = self.shape(value)
        last = len(shape)
        wide = self.reshape(value, (*shape, 1))
        total: Value | None = None
        for first in range(0, bits, 8):
            places = range(first, min(first + 8, bits))
            scales = self.literal(torch.tensor([2.0**-k for k in (*places, places.stop)]))
            floors = self.op("floor", self.op("mul", wide, scales))
            this = self.op("slice", floors, dim=last, start=0, stop=len(places), step=1)
            above = self.op("slice", floors, dim=last, start=1, stop=len(places) + 1, step=1)
            odd = self.op("lt", self.op("mul", self.constant(2.0, DType.F32), above), this)
            worth = self.literal(torch.tensor([2**k if k < 63 else -(2**63) for k in places]))
            part = self.op("sum_i64", self.op("where", odd, worth, self.constant(0, DType.I64)), dims=(last,))
            total = part if total is None else self.op("add", total, part)
        assert total is not None
        return self.reshape(total, shape)

    def finish(
        self,
        loss: Value,
        stores: Sequence[Value],
        *,
        states: Sequence[str],
        data: Sequence[str],
        schedule: Sequence[str],
        batch_size: int,
        keep: Sequence[Value] = (),
    ) -> Program:
        """The program that computes these values, and those to keep: unreachable nodes go, except where state and data
        come in. Where the others are in it stands in `places`."""
        marks = [self.op("loss", loss)]
        coming_in = {index for index, node in enumerate(self.nodes) if node.op in ("state", "data")}
        order = sorted(coming_in | needed(self.nodes, [*marks, *stores, *keep]))
        place = {old: new for new, old in enumerate(order)}
        nodes = [
            Node(n.op, tuple(place[v] for v in n.inputs), n.attributes, n.type, n.source)
            for n in (self.nodes[old] for old in order)
        ]
        for slot, value in enumerate(stores):
            nodes.append(Node("store", (place[value],), {"slot": slot}, self.type(value)))
        self.places = {Value(old): new for old, new in place.items()}
        return Program(
            nodes=tuple(nodes),
            state_names=tuple(states),
            data_names=tuple(data),
            schedule_names=tuple(schedule),
            batch_size=batch_size,
        )


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
