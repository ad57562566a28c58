"""Descriptors of sources, elementwise operators and functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from roundlog.commitments import tensor_root
from roundlog.descriptors.check import MAX_LITERALS
from roundlog.descriptors.describe import Axes, Rule, Subject, rule
from roundlog.descriptors.descriptor import Descriptor, Family, Function, Input, Scalar
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
    """A constant's literals as an array with the bytes of the tensor; FP32 literals are bit patterns already."""
    return np.array(bits, dtype={DType.F32: "<u4", DType.I64: "<i8", DType.BOOL: "?"}[dtype])


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


def _map(codes: dict[DType, Scalar]) -> Rule:
    """A rule of MAP; `codes` by the dtype of the first input."""

    def describe(subject: Subject) -> Descriptor:
        return Descriptor(
            family=Family.MAP,
            code=codes[subject.input(0).dtype],
            dtype=subject.type.dtype,
            iteration=subject.type.shape,
            inputs=tuple(broadcast_rows(subject, position) for position in range(len(subject.node.inputs))),
        )

    return describe


def _define(name: str, **codes: Scalar) -> None:
    rule(name)(_map({DType(dtype): code for dtype, code in codes.items()}))


_define("add", f32=Scalar.F32_ADD, i64=Scalar.I64_ADD)
_define("sub", f32=Scalar.F32_SUB, i64=Scalar.I64_SUB)
_define("mul", f32=Scalar.F32_MUL, i64=Scalar.I64_MUL)
_define("div", f32=Scalar.F32_DIV)
_define("sqrt", f32=Scalar.F32_SQRT)
_define("neg", f32=Scalar.F32_NEG, i64=Scalar.I64_NEG)
_define("abs", f32=Scalar.F32_ABS, i64=Scalar.I64_ABS)
_define("floor", f32=Scalar.F32_FLOOR)
_define("maximum", f32=Scalar.F32_MAXIMUM, i64=Scalar.I64_MAXIMUM)
_define("minimum", f32=Scalar.F32_MINIMUM, i64=Scalar.I64_MINIMUM)
_define("eq", f32=Scalar.F32_EQ, i64=Scalar.I64_EQ, bool=Scalar.BOOL_EQ)
_define("lt", f32=Scalar.F32_LT, i64=Scalar.I64_LT)
_define("le", f32=Scalar.F32_LE, i64=Scalar.I64_LE)
_define("logical_and", bool=Scalar.BOOL_AND)
_define("logical_or", bool=Scalar.BOOL_OR)
_define("logical_not", bool=Scalar.BOOL_NOT)
_define("where", bool=Scalar.WHERE)
_define("to_f32", i64=Scalar.I64_TO_F32, bool=Scalar.BOOL_TO_F32)
_define("to_i64", bool=Scalar.BOOL_TO_I64)


def _function(code: Function) -> Rule:
    def describe(subject: Subject) -> Descriptor:
        return Descriptor(
            family=Family.FUNCTION,
            code=code,
            dtype=subject.type.dtype,
            iteration=subject.type.shape,
            inputs=(broadcast_rows(subject, 0),),
        )

    return describe


for _code in Function:
    rule(_code.name.lower())(_function(_code))
