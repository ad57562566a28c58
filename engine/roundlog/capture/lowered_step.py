"""A lowered step, and whether it is what another is that is computed with numbers of Python themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.evaluation import evaluated
from roundlog.capture.variants import Columns
from roundlog.capture.ways import Way
from roundlog.execution.stops import StoppedError
from roundlog.operators import StepInputs
from roundlog.program import Node

_NEAR = 1e-4
"""Distance of results, in units of the largest element, that roundings of numbers account for."""


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """Results of one traced step."""

    results: list[Value]
    """The loss, the next states and the gradients."""
    way: Way
    parts: list[list[Value]]
    """The conditions of its paths, and the results of each path, before one is chosen."""


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
        alike = len(lowered.parts) == len(plain.parts) and lowered.way.paths() == plain.way.paths()
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
