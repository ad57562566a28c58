"""Descriptors of sources, elementwise operators and functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from roundlog.commitments import tensor_root
from roundlog.definitions import Family
from roundlog.descriptors.check import MAX_LITERALS
from roundlog.descriptors.describe import Axes, Subject, rule, rule_of_family
from roundlog.descriptors.descriptor import Descriptor, Input
from roundlog.program import DType


def broadcast_rows(subject: Subject, position: int) -> Input:
    """Input `position` under NumPy's broadcasting rule: axes from the right, size 1 is read at 0."""
    shape = subject.input(position).shape
    axes = Axes(len(subject.type.shape))
    missing = axes.count - len(shape)
    rows = [axes.zero() if size == 1 else axes.one(missing + axis) for axis, size in enumerate(shape)]
    return subject.reads(position, rows)


def load(family: Family, subject: Subject, *parameters: int, root: bytes = bytes(32)) -> Descriptor:
    return Descriptor(
        family=family,
        dtype=subject.type.dtype,
        iteration=(subject.type.numel,),
        parameters=parameters,
        root=root,
    )


@rule("state")
def _state(subject: Subject) -> Descriptor:
    return load(Family.STATE, subject, subject.integer("slot"))


@rule("data")
def _data(subject: Subject) -> Descriptor:
    slot, program = subject.integer("slot"), subject.program
    kind = program.fields[program.data_names[slot]]
    plain = load(Family.DATA, subject, slot, len(program.data_names), kind.row.numel, kind.stride)
    return replace(plain, code=int(kind.stored))


@rule("schedule")
def _schedule(subject: Subject) -> Descriptor:
    return load(Family.SCHEDULE, subject, subject.integer("slot"), len(subject.program.schedule_names))


def literal_array(dtype: DType, bits: tuple[int, ...]) -> NDArray[np.generic]:
    """A constant's literals as an array with the bytes of the tensor; those of numbers are bit patterns already."""
    kind = "?" if dtype == DType.BOOL else f"<{'u' if dtype.is_float else 'i'}{dtype.itemsize}"
    return np.array(bits, dtype=kind)


@rule("constant")
def _constant(subject: Subject) -> Descriptor:
    bits = subject.integers("bits")
    if len(bits) <= MAX_LITERALS:
        return load(Family.CONSTANT, subject, *bits)
    return load(Family.CONSTANT, subject, root=tensor_root(literal_array(subject.type.dtype, bits)))


@rule("iota")
def _iota(subject: Subject) -> Descriptor:
    return load(Family.IOTA, subject, subject.integer("start"), subject.integer("step"))


@rule("uniform")
def _uniform(subject: Subject) -> Descriptor:
    return load(Family.UNIFORM, subject, subject.integer("stream"))


@rule_of_family(Family.MAP, Family.FUNCTION)
def _pointwise(subject: Subject) -> Descriptor:
    signature = subject.definition.signature(subject.input(0).dtype)
    assert signature is not None
    return Descriptor(
        family=subject.definition.family,
        code=signature.code,
        dtype=subject.type.dtype,
        iteration=subject.type.shape,
        inputs=tuple(broadcast_rows(subject, position) for position in range(len(subject.node.inputs))),
    )
