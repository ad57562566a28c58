"""The descriptor of every operator of the registry, from the node and the types of its inputs alone.

A rule writes the operator's docstring down as rows over its axes, the long way; `simplify` makes it short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from roundlog.descriptors.check import check_descriptor
from roundlog.descriptors.descriptor import REDUCTIONS, Descriptor, DescriptorError, Input, Row
from roundlog.descriptors.segments import terms_per_segment
from roundlog.descriptors.simplify import simplify
from roundlog.program import Attribute, Node, Program, TensorType


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a rule: one operator of a checked program."""

    program: Program
    index: int

    @property
    def node(self) -> Node:
        return self.program.nodes[self.index]

    @property
    def type(self) -> TensorType:
        return self.node.type

    def input(self, position: int) -> TensorType:
        return self.program.nodes[self.node.inputs[position]].type

    def attribute(self, name: str) -> Attribute:
        return self.node.attributes[name]

    def integer(self, name: str) -> int:
        value = self.node.attributes[name]
        assert isinstance(value, int)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.node.attributes[name]
        assert isinstance(value, tuple)
        return value

    def reads(self, position: int, rows: Sequence[Row], view: tuple[int, ...] | None = None) -> Input:
        """Input `position` seen as `view` (its own shape unless told otherwise), with a row an axis."""
        kind = self.input(position)
        return Input(self.node.inputs[position], kind.dtype, kind.shape if view is None else view, tuple(rows))


Rule = Callable[[Subject], Descriptor]

RULES: dict[str, Rule] = {}
"""Operator name -> rule. The tests hold its keys against the registry's."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under operators' names."""

    def add(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"operator {name} is described twice")
            RULES[name] = function
        return function

    return add


class Axes:
    """Rows over a number of axes, by name of the axis: position in iteration + reduction."""

    def __init__(self, count: int) -> None:
        self.count = count

    def row(self, offset: int = 0, *terms: tuple[int, int], divisor: int = 1) -> Row:
        """offset + the sum of coefficient * index[axis] over `terms`, pairs (axis, coefficient)."""
        coefficients = [0] * self.count
        for axis, coefficient in terms:
            coefficients[axis] += coefficient
        return Row(offset, tuple(coefficients), divisor)

    def one(self, axis: int) -> Row:
        """The index of an axis itself."""
        return self.row(0, (axis, 1))

    def zero(self) -> Row:
        return self.row()


def describe(program: Program, index: int) -> Descriptor:
    """The descriptor of operator `index` of a program that `roundlog.operators.check` has passed. Raises
    DescriptorError, naming the operator, if it has more inputs, axes or terms than a contract can read."""
    node = program.nodes[index]
    found = RULES.get(node.op)
    if found is None:
        raise DescriptorError(f"{program.describe(index)}: no contract can compute {node.op}")
    descriptor = simplify(found(Subject(program, index)))
    if descriptor.family in REDUCTIONS:
        descriptor = replace(descriptor, segment=terms_per_segment(descriptor))
    assert descriptor.elements == prod(node.type.shape), program.describe(index)
    try:
        check_descriptor(descriptor)
    except DescriptorError as error:
        raise DescriptorError(f"{program.describe(index)}: {error}") from None
    return descriptor
