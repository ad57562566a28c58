"""Descriptors of the operators that copy bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import prod

from roundlog.definitions import Copy, Family
from roundlog.descriptors.describe import Axes, Subject, rule
from roundlog.descriptors.descriptor import Descriptor, Input
from roundlog.descriptors.rules_elementwise import broadcast_rows


def copy(subject: Subject, *inputs: Input, iteration: tuple[int, ...] | None = None) -> Descriptor:
    """The first valid read of these."""
    shape = subject.type.shape if iteration is None else iteration
    return Descriptor(family=Family.COPY, dtype=subject.type.dtype, iteration=shape, inputs=inputs)


@rule("reshape")
def _same_elements(subject: Subject) -> Descriptor:
    numel = (subject.type.numel,)
    return copy(subject, subject.reads(0, [Axes(1).one(0)], view=numel), iteration=numel)


@rule("store")
def _store(subject: Subject) -> Descriptor:
    finite = subject.type.dtype.is_float and not subject.program.keeps_slot(subject.index)
    return replace(_same_elements(subject), code=Copy.FINITE if finite else Copy.ANY)


@rule("loss")
def _loss(subject: Subject) -> Descriptor:
    return replace(_same_elements(subject), code=Copy.FINITE)


@rule("permute")
def _permute(subject: Subject) -> Descriptor:
    dims = subject.integers("dims")
    axes = Axes(len(dims))
    return copy(subject, subject.reads(0, [axes.one(dims.index(axis)) for axis in range(len(dims))]))


@rule("expand")
def _expand(subject: Subject) -> Descriptor:
    return copy(subject, broadcast_rows(subject, 0))


@rule("slice")
def _slice(subject: Subject) -> Descriptor:
    dim, start, step = (subject.integer(name) for name in ("dim", "start", "step"))
    axes = Axes(len(subject.type.shape))
    rows = [axes.row(start, (dim, step)) if axis == dim else axes.one(axis) for axis in range(axes.count)]
    return copy(subject, subject.reads(0, rows))


@rule("flip")
def _flip(subject: Subject) -> Descriptor:
    dim, shape = subject.integer("dim"), subject.type.shape
    axes = Axes(len(shape))
    rows = [axes.row(shape[dim] - 1, (dim, -1)) if axis == dim else axes.one(axis) for axis in range(axes.count)]
    return copy(subject, subject.reads(0, rows))


@rule("cat")
def _cat(subject: Subject) -> Descriptor:
    dim = subject.integer("dim")
    axes = Axes(len(subject.type.shape))
    positions = range(len(subject.node.inputs))
    starts = accumulate((subject.input(position).shape[dim] for position in positions), initial=0)
    inputs = []
    for position, start in zip(positions, starts, strict=False):
        rows = [axes.row(-start, (dim, 1)) if axis == dim else axes.one(axis) for axis in range(axes.count)]
        inputs.append(subject.reads(position, rows))
    return copy(subject, *inputs)


@rule("pad")
def _pad(subject: Subject) -> Descriptor:
    # Elements outside of x are the fill, which can always be read.
    axes = Axes(len(subject.type.shape))
    rows = [axes.row(-low, (axis, 1)) for axis, low in enumerate(subject.integers("low"))]
    return copy(subject, subject.reads(0, rows), subject.reads(1, []))


@rule("gather")
def _gather(subject: Subject) -> Descriptor:
    dim = subject.integer("dim")
    axes = Axes(len(subject.type.shape))
    index = [axes.one(axis) for axis in range(axes.count)]
    x = [axes.zero() if axis == dim else row for axis, row in enumerate(index)]
    return Descriptor(
        family=Family.GATHER,
        dtype=subject.type.dtype,
        iteration=subject.type.shape,
        inputs=(subject.reads(0, x), subject.reads(1, index)),
        parameters=(dim,),
    )


@rule("take")
def _take(subject: Subject) -> Descriptor:
    x, index = subject.input(0), subject.input(1)
    axes = Axes(2)
    rest = prod(x.shape[1:])
    return Descriptor(
        family=Family.GATHER,
        dtype=subject.type.dtype,
        iteration=(index.numel, rest),
        inputs=(
            subject.reads(0, [axes.zero(), axes.one(1)], view=(x.shape[0], rest)),
            subject.reads(1, [axes.one(0)], view=(index.numel,)),
        ),
        parameters=(0,),
    )
