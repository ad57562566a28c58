"""Descriptors of the operators: sources and elementwise ones, movements, reductions, contractions and convolutions."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundlog.commitments import tensor_root
from roundlog.definitions import Copy, Family
from roundlog.definitions.tensor_core import code_of
from roundlog.descriptors.describe import Axes, Subject, rule
from roundlog.descriptors.descriptor import MAX_LITERALS, Descriptor, Input, Row
from roundlog.program import DType


def broadcast_rows(subject: Subject, position: int) -> Input:
    """Input `position` under NumPy's broadcasting rule: axes from the right, size 1 is read at 0."""
    shape = subject.input(position).shape
    axes = Axes(len(subject.type.shape))
    missing = axes.count - len(shape)
    rows = [axes.zero() if size == 1 else axes.one(missing + axis) for axis, size in enumerate(shape)]
    return subject.reads(position, rows)


def load(family: Family, subject: Subject, *parameters: int, **more: Any) -> Descriptor:
    return _described(subject, family, (subject.type.numel,), parameters=parameters, **more)


def _described(subject: Subject, family: Family, iteration: tuple[int, ...], *inputs: Input, **more: Any) -> Descriptor:
    return Descriptor(family=family, dtype=subject.type.dtype, iteration=iteration, inputs=inputs, **more)


def _code(subject: Subject) -> int:
    """The operator's code for the dtype of its first input."""
    signature = subject.definition.signature(subject.input(0).dtype)
    assert signature is not None
    return signature.code


@rule("state")
def _state(subject: Subject) -> Descriptor:
    return load(Family.STATE, subject, subject.integer("slot"))


@rule("data")
def _data(subject: Subject) -> Descriptor:
    slot, program = subject.integer("slot"), subject.program
    kind = program.fields[program.data_names[slot]]
    parameters = slot, len(program.data_names), kind.row.numel, kind.stride
    return load(Family.DATA, subject, *parameters, code=int(kind.stored))


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


@rule(Family.MAP, Family.FUNCTION)
def _pointwise(subject: Subject) -> Descriptor:
    inputs = (broadcast_rows(subject, position) for position in range(len(subject.node.inputs)))
    return _described(subject, subject.definition.family, subject.type.shape, *inputs, code=_code(subject))


def copy(subject: Subject, *inputs: Input, iteration: tuple[int, ...] | None = None) -> Descriptor:
    """The first valid read of these."""
    return _described(subject, Family.COPY, subject.type.shape if iteration is None else iteration, *inputs)


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
    reads = subject.reads(0, x), subject.reads(1, index)
    return _described(subject, Family.GATHER, subject.type.shape, *reads, parameters=(dim,))


@rule("take")
def _take(subject: Subject) -> Descriptor:
    x, index = subject.input(0), subject.input(1)
    axes = Axes(2)
    rest = prod(x.shape[1:])
    rows = subject.reads(0, [axes.zero(), axes.one(1)], view=(x.shape[0], rest))
    places = subject.reads(1, [axes.one(0)], view=(index.numel,))
    return _described(subject, Family.GATHER, (index.numel, rest), rows, places, parameters=(0,))


@rule(Family.SUM, Family.EXTREME, Family.INTEGER_SUM, Family.ANY)
def _over_axes(subject: Subject) -> Descriptor:
    """A reduction of one input over the axes `dims`, which stay as axes of size 1."""
    iteration, reduction, rows = _lines(subject, subject.integers("dims"))
    read, family = subject.reads(0, rows), subject.definition.family
    return _described(subject, family, iteration, read, reduction=reduction, code=_code(subject))


def _lines(subject: Subject, dims: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], list[Row]]:
    shape = subject.input(0).shape
    kept = [axis for axis in range(len(shape)) if axis not in dims]
    axes = Axes(len(shape))
    order = [*kept, *dims]
    rows = [axes.one(order.index(axis)) for axis in range(len(shape))]
    return tuple(shape[axis] for axis in kept), tuple(shape[axis] for axis in dims), rows


def _labelled(row: Row) -> tuple[int, ...]:
    return (row.offset, row.divisor, *row.coefficients)


@rule("argmax")
def _argmax(subject: Subject) -> Descriptor:
    iteration, reduction, rows = _lines(subject, (subject.integer("dim"),))
    label = _labelled(Axes(len(rows)).one(len(rows) - 1))
    read = subject.reads(0, rows)
    return _described(subject, Family.ARGMAX, iteration, read, reduction=reduction, parameters=label)


@rule("max_pool_index")
def _max_pool_index(subject: Subject) -> Descriptor:
    n, channels, height, width = subject.input(0).shape
    axes = Axes(5)
    plane, p, q, i, j = range(5)
    row, column = _spatial(axes, subject, (p, q), (i, j))
    label = Row(
        row.offset * width + column.offset,
        tuple(a * width + b for a, b in zip(row.coefficients, column.coefficients, strict=True)),
    )
    return _described(
        subject,
        Family.ARGMAX,
        (n * channels, *subject.type.shape[2:]),
        subject.reads(0, [axes.one(plane), row, column], view=(n * channels, height, width)),
        reduction=subject.integers("kernel"),
        parameters=_labelled(label),
    )


@rule("scatter_add")
def _scatter_add(subject: Subject) -> Descriptor:
    x, index = subject.input(0), subject.input(1)
    dim, rank = subject.integer("dim"), len(x.shape)
    axes = Axes(rank + 1)
    x_rows = [axes.one(rank if axis == dim else axis) for axis in range(rank)]
    index_rows = [axes.zero() if size == 1 and axis != dim else x_rows[axis] for axis, size in enumerate(index.shape)]
    return _described(
        subject,
        Family.SELECTED_SUM,
        subject.type.shape,
        subject.reads(0, x_rows),
        subject.reads(1, index_rows),
        reduction=(x.shape[dim],),
        parameters=_labelled(axes.one(dim)),
    )


@rule("matmul", "tensor_core_matmul")
def _matmul(subject: Subject) -> Descriptor:
    a = subject.input(0).shape
    batch = a[:-2]
    axes = Axes(len(batch) + 3)
    outer = [axes.one(axis) for axis in range(len(batch))]
    m, n, k = (axes.one(len(batch) + axis) for axis in range(3))
    reads = subject.reads(0, [*outer, m, k]), subject.reads(1, [*outer, k, n])
    family = subject.definition.family
    code = code_of(str(subject.node.attributes["arithmetic"])) if family == Family.CHAIN else 0
    return _described(subject, family, subject.type.shape, *reads, reduction=a[-1:], code=code)


def _spatial(axes: Axes, subject: Subject, out: tuple[int, int], tap: tuple[int, int]) -> list[Row]:
    """Index of the input for an output position and a kernel tap, an axis each: out * stride + tap * dilation -
    padding."""
    lists = (subject.integers(name) for name in ("padding", "stride", "dilation"))
    return [
        axes.row(-padding, (out[a], stride), (tap[a], dilation))
        for a, (padding, stride, dilation) in enumerate(zip(*lists, strict=True))
    ]


@rule("conv2d")
def _conv2d(subject: Subject) -> Descriptor:
    x, w = subject.input(0).shape, subject.input(1).shape
    groups = subject.integer("groups")
    axes = Axes(8)
    n, g, o, p, q, c, i, j = range(8)
    spatial = _spatial(axes, subject, (p, q), (i, j))
    channel = axes.row(0, (g, w[1]), (c, 1))
    kernel = axes.row(0, (g, w[0] // groups), (o, 1))
    return _described(
        subject,
        Family.SUM,
        (x[0], groups, w[0] // groups, *subject.type.shape[2:]),
        subject.reads(0, [axes.one(n), channel, *spatial]),
        subject.reads(1, [kernel, axes.one(c), axes.one(i), axes.one(j)]),
        reduction=w[1:],
    )


@rule("conv2d_grad_input")
def _conv2d_grad_input(subject: Subject) -> Descriptor:
    w = subject.input(1).shape
    groups = subject.integer("groups")
    outputs = w[0] // groups
    axes = Axes(8)
    n, g, c, h, v, o, i, j = range(8)
    # Turned round: the output position that reads this input position through that tap, if there is one.
    spatial = [
        axes.row(
            subject.integers("padding")[a],
            (position, 1),
            (tap, -subject.integers("dilation")[a]),
            divisor=subject.integers("stride")[a],
        )
        for a, (position, tap) in enumerate(((h, i), (v, j)))
    ]
    kernel = axes.row(0, (g, outputs), (o, 1))
    return _described(
        subject,
        Family.SUM,
        (subject.type.shape[0], groups, w[1], *subject.type.shape[2:]),
        subject.reads(0, [axes.one(n), kernel, *spatial]),
        subject.reads(1, [kernel, axes.one(c), axes.one(i), axes.one(j)]),
        reduction=(outputs, *w[2:]),
    )


@rule("conv2d_grad_weight")
def _conv2d_grad_weight(subject: Subject) -> Descriptor:
    gradient = subject.input(0).shape
    w = subject.type.shape
    groups = subject.integer("groups")
    axes = Axes(8)
    g, o, c, i, j, n, p, q = range(8)
    spatial = _spatial(axes, subject, (p, q), (i, j))
    kernel = axes.row(0, (g, w[0] // groups), (o, 1))
    channel = axes.row(0, (g, w[1]), (c, 1))
    return _described(
        subject,
        Family.SUM,
        (groups, w[0] // groups, *w[1:]),
        subject.reads(0, [axes.one(n), kernel, axes.one(p), axes.one(q)]),
        subject.reads(1, [axes.one(n), channel, *spatial]),
        reduction=(gradient[0], *gradient[2:]),
    )
