"""Descriptors of reductions, contractions, convolutions and pooling."""

from __future__ import annotations

from roundlog.definitions import Family
from roundlog.descriptors.describe import Axes, Subject, rule, rule_of_family
from roundlog.descriptors.descriptor import Descriptor, Input, Row


@rule_of_family(Family.SUM, Family.EXTREME, Family.INTEGER_SUM, Family.ANY)
def _over_axes(subject: Subject) -> Descriptor:
    """A reduction of one input over the axes `dims`, which stay as axes of size 1."""
    iteration, reduction, rows = _lines(subject, subject.integers("dims"))
    signature = subject.definition.signature(subject.input(0).dtype)
    assert signature is not None
    return Descriptor(
        family=subject.definition.family,
        code=signature.code,
        dtype=subject.type.dtype,
        iteration=iteration,
        reduction=reduction,
        inputs=(subject.reads(0, rows),),
    )


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
    axes = Axes(len(rows))
    return Descriptor(
        family=Family.ARGMAX,
        dtype=subject.type.dtype,
        iteration=iteration,
        reduction=reduction,
        inputs=(subject.reads(0, rows),),
        parameters=_labelled(axes.one(axes.count - 1)),
    )


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
    return Descriptor(
        family=Family.ARGMAX,
        dtype=subject.type.dtype,
        iteration=(n * channels, *subject.type.shape[2:]),
        reduction=subject.integers("kernel"),
        inputs=(subject.reads(0, [axes.one(plane), row, column], view=(n * channels, height, width)),),
        parameters=_labelled(label),
    )


@rule("scatter_add")
def _scatter_add(subject: Subject) -> Descriptor:
    x, index = subject.input(0), subject.input(1)
    dim, rank = subject.integer("dim"), len(x.shape)
    axes = Axes(rank + 1)
    x_rows = [axes.one(rank if axis == dim else axis) for axis in range(rank)]
    index_rows = [axes.zero() if size == 1 and axis != dim else x_rows[axis] for axis, size in enumerate(index.shape)]
    return Descriptor(
        family=Family.SELECTED_SUM,
        dtype=subject.type.dtype,
        iteration=subject.type.shape,
        reduction=(x.shape[dim],),
        inputs=(subject.reads(0, x_rows), subject.reads(1, index_rows)),
        parameters=_labelled(axes.one(dim)),
    )


def _products(
    subject: Subject, iteration: tuple[int, ...], reduction: tuple[int, ...], a: Input, b: Input
) -> Descriptor:
    return Descriptor(
        family=Family.SUM, dtype=subject.type.dtype, iteration=iteration, reduction=reduction, inputs=(a, b)
    )


@rule("matmul")
def _matmul(subject: Subject) -> Descriptor:
    a = subject.input(0).shape
    batch = a[:-2]
    axes = Axes(len(batch) + 3)
    outer = [axes.one(axis) for axis in range(len(batch))]
    m, n, k = (axes.one(len(batch) + axis) for axis in range(3))
    return _products(
        subject, subject.type.shape, a[-1:], subject.reads(0, [*outer, m, k]), subject.reads(1, [*outer, k, n])
    )


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
    return _products(
        subject,
        (x[0], groups, w[0] // groups, *subject.type.shape[2:]),
        w[1:],
        subject.reads(0, [axes.one(n), channel, *spatial]),
        subject.reads(1, [kernel, axes.one(c), axes.one(i), axes.one(j)]),
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
    return _products(
        subject,
        (subject.type.shape[0], groups, w[1], *subject.type.shape[2:]),
        (outputs, *w[2:]),
        subject.reads(0, [axes.one(n), kernel, *spatial]),
        subject.reads(1, [kernel, axes.one(c), axes.one(i), axes.one(j)]),
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
    return _products(
        subject,
        (groups, w[0] // groups, *w[1:]),
        (gradient[0], *gradient[2:]),
        subject.reads(0, [axes.one(n), kernel, axes.one(p), axes.one(q)]),
        subject.reads(1, [axes.one(n), channel, *spatial]),
    )
