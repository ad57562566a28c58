"""One program of a step that is not the same at all steps: what differs is chosen by columns of the schedule.

Every traced step is lowered by itself. Values that stand in one place of several steps are then brought together, from
the results down: the same operator of the same inputs is one already, the same operator of other inputs becomes one of
inputs that are chosen, numbers become a column with the number of each step, and anything else is chosen by a column
that is 1 at the steps that have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.capture.builder import Builder, Value, evaluated, needed
from roundlog.capture.captured import ExecutionPath, OnPath
from roundlog.capture.errors import CaptureError
from roundlog.execution.stops import StoppedError
from roundlog.operators import StepInputs
from roundlog.program import DType, Node, TensorType

_SOURCES = ("state", "data", "schedule", "constant", "iota", "uniform")
"""Operators without inputs."""


class Columns:
    """Columns of the schedule that stand behind those of the optimizers."""

    def __init__(self, builder: Builder, base: torch.Tensor) -> None:
        """base: f32[steps, columns] of the optimizers."""
        self._builder = builder
        self._first = base.shape[1]
        self._table = [base[:, slot].numpy() for slot in range(self._first)]
        self._slots: dict[bytes, int] = {}

    def value(self, numbers: NDArray[np.float64]) -> Value:
        """An f32[] that is `numbers` [steps], rounded to FP32: a constant, if they are all the same. Raises
        CaptureError for a number that is not finite."""
        with np.errstate(over="ignore"):
            column = numbers.astype(np.float32)
        if not np.isfinite(column).all():
            step = int(np.flatnonzero(~np.isfinite(column))[0])
            raise CaptureError(
                f"at step {step} the step computes with a number of Python that is {numbers[step]}, and a schedule has "
                "finite numbers of FP32: keep it within them (min, max)"
            )
        if (column.view(np.uint32) == column.view(np.uint32)[0]).all():
            return self._builder.constant(float(column[0]), DType.F32)
        key = column.tobytes()
        if key not in self._slots:
            self._slots[key] = len(self._table)
            self._table.append(column)
        return self._builder.source_op("schedule", TensorType((), DType.F32), slot=self._slots[key])

    def row(self, step: int) -> torch.Tensor:
        """All columns at a step, f32[columns]."""
        return torch.from_numpy(np.array([column[step] for column in self._table], dtype=np.float32))

    def numbers(self, value: Value) -> NDArray[np.float64] | None:
        """The numbers [steps] of a value that is a finite number at every step, f32[...]; None for another."""
        node = self._builder.nodes[value]
        if node.op == "schedule":
            slot = node.attributes["slot"]
            assert isinstance(slot, int)
            return self._table[slot].astype(np.float64)
        if node.op == "expand":
            return self.numbers(Value(node.inputs[0]))
        bits = node.attributes.get("bits")
        if node.op != "constant" or node.type.dtype != DType.F32 or not isinstance(bits, tuple) or len(bits) != 1:
            return None
        number = float(np.array([bits[0]], dtype=np.uint32).view(np.float32)[0])
        return np.full(len(self._table[0]), number) if np.isfinite(number) else None

    def kept(self, values: Sequence[Value]) -> tuple[list[str], torch.Tensor]:
        """Names of the columns that these values depend on, and f32[steps, columns], behind those of the optimizers.
        The program's nodes get the slots that these have."""
        nodes = self._builder.nodes
        own = [
            value
            for value in sorted(needed(nodes, values))
            if nodes[value].op == "schedule" and self._slot(value) >= self._first
        ]
        slots = {self._slot(value): self._first + number for number, value in enumerate(own)}
        table = [self._table[slot] for slot in slots]
        for value in own:
            nodes[value] = replace(nodes[value], attributes={"slot": slots[self._slot(value)]})
        names = [f"number/{number}" for number in range(len(table))]
        return names, torch.from_numpy(np.stack(table, axis=1)) if table else torch.zeros(0, 0)

    def _slot(self, value: int) -> int:
        slot = self._builder.nodes[value].attributes["slot"]
        assert isinstance(slot, int)
        return slot


class Variants:
    """Values of several lowered steps, brought together."""

    def __init__(self, builder: Builder, columns: Columns, which: NDArray[np.int64]) -> None:
        """which: i64[steps], the number of the lowered step that each step is."""
        self._builder = builder
        self._columns = columns
        self._which = which
        self._merged: dict[tuple[Value, ...], Value] = {}

    def condition(self, number: int) -> Value:
        """A bool[] that holds at the steps that are a lowered one, by its number."""
        return self._where([number])

    def _where(self, numbers: Sequence[int]) -> Value:
        flag = self._columns.value(np.isin(self._which, numbers).astype(np.float64))
        return self._builder.op("lt", self._builder.constant(0.0, DType.F32), flag)

    def one(self, values: Sequence[Value]) -> Value:
        """The value that is `values[k]` at the steps that are the k-th lowered one."""
        todo = [tuple(values)]
        while todo:
            several = todo[-1]
            if several in self._merged:
                todo.pop()
                continue
            inputs = self._inputs(several)
            if missing := [pair for pair in inputs or () if pair not in self._merged]:
                todo.extend(missing)
                continue
            self._merged[several] = self._joined(several, inputs)
        return self._merged[tuple(values)]

    def _inputs(self, several: tuple[Value, ...]) -> list[tuple[Value, ...]] | None:
        """Inputs of the one operator that several values are results of; None if there is no such operator."""
        nodes = [self._builder.nodes[value] for value in several]
        first = nodes[0]
        if len(set(several)) == 1 or first.op in _SOURCES:
            return None
        kinds = [self._builder.nodes[value].type for value in first.inputs]
        for node in nodes[1:]:
            if (node.op, node.attributes, node.type) != (first.op, first.attributes, first.type):
                return None
            if [self._builder.nodes[value].type for value in node.inputs] != kinds:
                return None
        return [tuple(map(Value, pair)) for pair in zip(*(node.inputs for node in nodes), strict=True)]

    def _joined(self, several: tuple[Value, ...], inputs: list[tuple[Value, ...]] | None) -> Value:
        builder, first = self._builder, self._builder.nodes[several[0]]
        if len(set(several)) == 1:
            return several[0]
        builder.source = first.source
        if inputs is not None:
            return builder.again(first, [self._merged[pair] for pair in inputs])
        found = [self._columns.numbers(value) for value in several]
        numbers = [one for one in found if one is not None]
        if len(numbers) == len(several) and all(builder.type(value) == first.type for value in several):
            column = self._columns.value(np.select([self._which == k for k in range(len(several))], numbers, 0.0))
            return builder.expand(column, first.type.shape)
        return self._chosen(several)

    def _chosen(self, several: tuple[Value, ...]) -> Value:
        distinct = list(dict.fromkeys(several))
        result = distinct[0]
        for value in distinct[1:]:
            condition = self._where([k for k, other in enumerate(several) if other == value])
            result = self._builder.op("where", condition, value, result)
        return result

    def path(self, paths: Sequence[ExecutionPath], stand: Sequence[Callable[[int], int]]) -> ExecutionPath:
        """Draws of the lowered steps, and the gradients that they have, chosen as their values are. stand: as
        `representatives` gives it."""
        placed = [path.placed(there) for path, there in zip(paths, stand, strict=True)]
        result = placed[0]
        for number in range(1, len(placed)):
            result = ExecutionPath.of(self.condition(number), placed[number], result)
        return result

    def representatives(self, results: Sequence[Value], count: int) -> list[Callable[[int], int]]:
        """By lowered step (`count` of them: a short job does not come to all): its values -> those that stand
        for them in what the program computes, results."""
        alive = needed(self._builder.nodes, results)
        stand: list[dict[int, int]] = [{} for _ in range(count)]
        for several, merged in self._merged.items():
            if merged in alive:
                for number, value in enumerate(several):
                    stand[number].setdefault(value, merged)
        return [partial(_representative, here) for here in stand]


def _representative(merged: Mapping[int, int], value: int) -> int:
    return merged.get(value, value)


_NEAR = 1e-4
"""Distance of results, in units of the largest element, that roundings of numbers account for."""


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """Results of one traced step."""

    results: list[Value]
    """The loss, the next states and the gradients."""
    path: ExecutionPath
    parts: list[list[Value]]
    """The conditions of its paths, and the results of each path, before one is chosen."""
    on_paths: dict[OnPath, Value | None]
    """Results of the kernels that PyTorch calls, and next states, before those of one path are chosen; None for what is
    known at capture."""


class Comparison:
    """Comparison of what is computed at one step."""

    def __init__(self, nodes: Sequence[Node], columns: Columns, given: StepInputs) -> None:
        """given: inputs of the step, whose states are any that it may begin with."""
        self._nodes = nodes
        self._columns = columns
        self._given = given

    def confirm(self, results: Sequence[Value], lowered: LoweredStep, plain: LoweredStep) -> None:
        """Raises CaptureError unless results, and all parts of the lowered step, are what those of the plain step are,
        which has the numbers of Python themselves."""
        pairs = [(results, plain.results), *zip(lowered.parts, plain.parts, strict=False)]
        alike = len(lowered.parts) == len(plain.parts) and lowered.path.paths() == plain.path.paths()
        if not alike or not all(len(a) == len(b) and (self._agree(a, b) or self._close(a, b)) for a, b in pairs):
            raise CaptureError(
                f"at step {self._given.step} the step computes something else with numbers of Python themselves than "
                "with what stands for them: keep what steps change in buffers that hold tensors from the start"
            )

    def _agree(self, values: Sequence[Value], others: Sequence[Value]) -> bool:
        """Whether values are what others are, operator by operator, numbers by what they are at the step."""
        step, nodes, seen, todo = (
            self._given.step,
            self._nodes,
            set[tuple[int, int]](),
            list(zip(values, others, strict=True)),
        )
        while todo:
            pair = todo.pop()
            mine, other = pair
            if mine == other or pair in seen:
                continue
            seen.add(pair)
            node, its = nodes[mine], nodes[other]
            numbers = [self._columns.numbers(value) for value in pair]
            if numbers[0] is not None and numbers[1] is not None and node.type == its.type:
                if np.float32(numbers[0][step]) != np.float32(numbers[1][step]):
                    return False
            elif (same := self._passed(mine)) is not None:
                todo.append((same, other))
            elif (same := self._passed(other)) is not None:
                todo.append((mine, same))
            elif (node.op, node.attributes, node.type) != (its.op, its.attributes, its.type) or not node.inputs:
                return False
            else:
                todo.extend((Value(a), Value(b)) for a, b in zip(node.inputs, its.inputs, strict=True))
        return True

    def _passed(self, value: Value) -> Value | None:
        """The input that a choice by a column takes at the step, or that a factor of 1 leaves as it is."""
        step, node = self._given.step, self._nodes[value]
        inputs = [Value(one) for one in node.inputs]
        same: list[Value] = []
        if node.op == "where" and self._nodes[inputs[0]].op == "lt":
            asked = [self._columns.numbers(Value(one)) for one in self._nodes[inputs[0]].inputs]
            one, two = (None if numbers is None else np.float32(numbers[step]) for numbers in asked)
            same = [] if one is None or two is None else [inputs[1] if one < two else inputs[2]]
        elif node.op == "mul":
            numbers = [self._columns.numbers(one) for one in inputs]
            same = [b for n, b in zip(numbers, inputs[::-1], strict=True) if n is not None and n[step] == 1]
        fits = [one for one in same if self._nodes[one].type == node.type]
        return fits[0] if fits else None

    def _close(self, values: Sequence[Value], others: Sequence[Value]) -> bool:
        """Whether values are what others are but for roundings: 1 - w is computed by Python of a number, and by the
        program of a column."""
        try:
            found = evaluated(self._nodes, {*values, *others}, self._given)
        except StoppedError:
            return False
        pairs = [(found[one], found[two]) for one, two in zip(values, others, strict=True)]
        return all(one.shape == two.shape and one.dtype == two.dtype and _apart(one, two) < _NEAR for one, two in pairs)


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """Largest difference, in units of the largest element."""
    same = (one == two) | (one != one) & (two != two)
    if bool(same.all()):
        return 0.0
    largest = float(two[two.isfinite()].double().abs().max()) if bool(two.isfinite().any()) else 0.0
    return float((one.double() - two.double())[~same].abs().max()) / max(largest, 1e-30)
