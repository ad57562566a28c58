"""Definitions of the operators whose shapes say more than "element by element": sources, movement, reductions and
contractions."""

from __future__ import annotations

from functools import partial
from typing import Any

from roundlog.definitions.definition import (
    FLOATS,
    Copy,
    Extreme,
    Family,
    InputReads,
    OperatorDefinition,
    OperatorKind,
    Signature,
)
from roundlog.definitions.tensor_core import ARITHMETICS, SEGMENT_TERMS
from roundlog.program import DType, Stored

_Attributes = dict[str, type]

_F32, _I64, _BOOL = DType.F32, DType.I64, DType.BOOL

_OF_SUMS = "gamma(n - 1) * sum of magnitudes"
_OF_PRODUCTS = "gamma(K - 1) * norm * norm, K terms"


_source = partial(OperatorDefinition, kind=OperatorKind.SOURCE, reads=InputReads.WHOLE)
"""A value from outside the arithmetic."""

_end = partial(OperatorDefinition, family=Family.COPY, kind=OperatorKind.MOVEMENT, reads=InputReads.WHOLE)
"""The end of a step: its input as it is, kept."""

_reduction = partial(OperatorDefinition, kind=OperatorKind.EXACT, reads=InputReads.LINE)
"""An extreme, or another number of many elements."""

_sum = partial(OperatorDefinition, kind=OperatorKind.INEXACT, reads=InputReads.LINE, bound=_OF_SUMS)
"""A sum of many elements."""


def _movement(
    name: str, meaning: str, *inputs: DType | None, family: Family = Family.COPY, **more: Any
) -> OperatorDefinition:
    """A copy of bits, of any dtype T."""
    how = {"kind": OperatorKind.MOVEMENT, "reads": InputReads.OWN_RULE} | more
    return OperatorDefinition(name, meaning, family, (Signature(inputs, None),), **how)


def _contraction(
    name: str, meaning: str, attributes: _Attributes | None = None, reads: InputReads = InputReads.OWN_RULE
) -> OperatorDefinition:
    """Sums of products, correctly rounded."""
    formats = tuple(Signature((dtype, dtype), dtype) for dtype in FLOATS)
    return _sum(name, meaning, Family.SUM, formats, reads=reads, bound=_OF_PRODUCTS, attributes=attributes or {})


_WINDOWS: _Attributes = {"stride": tuple, "padding": tuple, "dilation": tuple}
_CONVOLUTION: _Attributes = {**_WINDOWS, "groups": int}

SOURCES = (
    _source(
        "state",
        "state(slot): the tensor of that state slot before the step (a parameter, buffer or optimizer slot).",
        Family.STATE,
        (Signature((), None),),
        attributes={"slot": int},
    ),
    _source(
        "data",
        """data(slot): that field of the step's batch, [batch_size, ...]; row j is the dataset row that the swap-or-not
        order gives to position step * batch_size + j. stride (where it is not a row's length): elements from the start
        of a row to that of the next, in the field; stored (of int64): u8, i8, i16, u16 or i32, as which its elements
        are stored.""",
        Family.DATA,
        tuple(Signature((), None if stored is Stored.AS_READ else _I64, stored) for stored in Stored),
        optional={"stride": int, "stored": str},
        attributes={"slot": int},
    ),
    _source(
        "schedule",
        """schedule(slot): the FP32 scalar in that column of the step's row of the schedule table (learning rate, bias
        corrections, ...).""",
        Family.SCHEDULE,
        (Signature((), _F32),),
        attributes={"slot": int},
    ),
    _source(
        "constant",
        """constant(bits): a literal tensor of at most 65,536 elements in row-major order; one item fills any shape.
        Items of a number format are bit patterns as unsigned integers (the only NaN is the quiet, positive one without
        a payload, 0x7fc00000 of FP32), int64 items are values, bool items are 0 or 1.""",
        Family.CONSTANT,
        (Signature((), None),),
        attributes={"bits": tuple},
    ),
    _source(
        "iota",
        "iota(start, step): int64[n], element i is start + i * step.",
        Family.IOTA,
        (Signature((), _I64),),
        attributes={"start": int, "step": int},
    ),
    _source(
        "uniform",
        """uniform(stream): FP32 in [0, 1), multiples of 2^-24: element i is (w_i >> 8) * 2^-24, w_i the i-th 32-bit
        word of Philox4x64-10 keyed by (seed, step * 2^32 + stream). Salmon et al. 2011; NumPy's `Philox`.""",
        Family.UNIFORM,
        (Signature((), _F32),),
        attributes={"stream": int},
    ),
)

ENDS = (
    _end(
        "loss",
        "loss(x): x, an FP32 scalar, marked as the step's loss. The run stops if it is not finite.",
        formats=(Signature((_F32,), _F32, Copy.FINITE),),
    ),
    _end(
        "store",
        """store(x, slot): x is the value of that state slot after the step. The run stops at an element that is not
        finite, unless x is what the slot held before, `state`, itself.""",
        formats=(
            Signature((None,), None, Copy.ANY),
            *(Signature((dtype,), dtype, Copy.FINITE) for dtype in FLOATS),
        ),
        attributes={"slot": int},
    ),
)

MOVEMENTS = (
    _movement(
        "reshape",
        "reshape(x, shape): the elements of x in row-major order, under another shape.",
        None,
        attributes={"shape": tuple},
    ),
    _movement(
        "permute", "permute(x, dims): axis a of the output is axis dims[a] of x.", None, attributes={"dims": tuple}
    ),
    _movement(
        "expand",
        "expand(x, shape): broadcast x to a larger shape (NumPy's rule).",
        None,
        reads=InputReads.PLACE,
        attributes={"shape": tuple},
    ),
    _movement(
        "slice",
        """slice(x, dim, start, stop, step): x[start:stop:step] along one axis, 0 <= start <= stop <= size, step >=
        1.""",
        None,
        attributes={"dim": int, "start": int, "stop": int, "step": int},
    ),
    _movement("flip", "flip(x, dim): reverse one axis.", None, reads=InputReads.LINE, attributes={"dim": int}),
    _movement(
        "cat",
        "cat(x_0, ..., x_n, dim): the inputs, at most 64, one after another, along one axis.",
        None,
        joins=True,
        attributes={"dim": int},
    ),
    _movement(
        "pad",
        "pad(x, fill, low, high): low[a] copies of the scalar `fill` before axis a of x and high[a] after it.",
        None,
        None,
        attributes={"low": tuple, "high": tuple},
    ),
    _movement(
        "gather",
        """gather(x, index, dim): output[.., i, ..] = x[.., index[.., i, ..], ..]; x and index agree on all axes but
        dim, and 0 <= index < x.shape[dim] (checked at run time).""",
        None,
        _I64,
        family=Family.GATHER,
        attributes={"dim": int},
    ),
    _movement(
        "take",
        """take(x, index): rows of x: output[i.., ...] = x[index[i..], ...]; 0 <= index < x.shape[0] (checked at run
        time). The lookup of an embedding.""",
        None,
        _I64,
        family=Family.GATHER,
    ),
)

REDUCTIONS = (
    _sum(
        "sum",
        "sum(x, dims): the sum over those axes, which stay as axes of size 1.",
        Family.SUM,
        tuple(Signature((dtype,), dtype) for dtype in FLOATS),
        attributes={"dims": tuple},
    ),
    _reduction(
        "amax",
        """amax(x, dims): the largest element over those axes, which stay as axes of size 1; NaN if one is, and a zero
        is +0.""",
        Family.EXTREME,
        tuple(Signature((dtype,), dtype, Extreme.MAX) for dtype in FLOATS),
        selects=True,
        attributes={"dims": tuple},
    ),
    _reduction(
        "amin",
        """amin(x, dims): the smallest element over those axes, which stay as axes of size 1; NaN if one is, and a zero
        is +0.""",
        Family.EXTREME,
        tuple(Signature((dtype,), dtype, Extreme.MIN) for dtype in FLOATS),
        selects=True,
        attributes={"dims": tuple},
    ),
    _reduction(
        "argmax",
        """argmax(x, dim): int64, the lowest index of a largest element along the axis (NaN is the largest), which stays
        as an axis of size 1.""",
        Family.ARGMAX,
        tuple(Signature((dtype,), _I64) for dtype in FLOATS),
        attributes={"dim": int},
    ),
    _reduction(
        "sum_i64",
        "sum_i64(x, dims): the sum over those axes, which stay as axes of size 1, modulo 2^64. int64.",
        Family.INTEGER_SUM,
        (Signature((_I64,), _I64),),
        attributes={"dims": tuple},
    ),
    _reduction(
        "any",
        "any(x, dims): whether any element over those axes, which stay as axes of size 1, is true. bool.",
        Family.ANY,
        (Signature((_BOOL,), _BOOL),),
        attributes={"dims": tuple},
    ),
    _reduction(
        "max_pool_index",
        """max_pool_index(x; kernel, stride, padding, dilation): x[N, C, H, W] -> int64[N, C, P, Q], where in its plane
        (row * W + column) the largest element of each window stands (NaN is the largest); of equal ones the first in
        row-major order.
        Padding is never chosen. P = (H + 2 padding - dilation (kernel - 1) - 1) // stride + 1, Q likewise.""",
        Family.ARGMAX,
        tuple(Signature((dtype,), _I64) for dtype in FLOATS),
        reads=InputReads.OWN_RULE,
        attributes={"kernel": tuple, **_WINDOWS},
    ),
    _sum(
        "scatter_add",
        """scatter_add(x, index, dim, size): the sum of all x[.., i, ..] with index[.., i, ..] = j stands at [.., j, ..]
        of the output, whose axis dim has `size` elements. index has as many axes as x, and broadcasts to it; what an
        index outside of [0, size) would place stands nowhere. The gradient of gather, take and max pooling.""",
        Family.SELECTED_SUM,
        tuple(Signature((dtype, _I64), dtype) for dtype in FLOATS),
        reads=InputReads.OWN_RULE,
        attributes={"dim": int, "size": int},
    ),
)

CONTRACTIONS = (
    _contraction(
        "matmul", "matmul(a, b): a[.., M, K] @ b[.., K, N] for matrices, or for batches [B, M, K] @ [B, K, N]."
    ),
    _contraction(
        "conv2d",
        """conv2d(x, w; stride, padding, dilation, groups): y[n, o, p, q] = the sum over (c, i, j) of
        x[n, c', p stride - padding + i dilation, q stride - padding + j dilation] * w[o, c, i, j]; each parameter but
        groups has one number for rows and one for columns. O and C are cut into groups of equal size, and c' is channel
        c of the group of o. What meets padding is left out, even if it is infinite.""",
        attributes=_CONVOLUTION,
    ),
    _contraction(
        "conv2d_grad_input",
        """conv2d_grad_input(g, w; stride, padding, dilation, groups, size): the gradient of conv2d with respect to x of
        height and width `size`: x[n, c', h, v] = the sum over (o of the group, i, j) of the products g[n, o, p, q] *
        w[o, c, i, j] in which conv2d reads x[n, c', h, v]; others are left out.""",
        attributes={"size": tuple, **_CONVOLUTION},
    ),
    _contraction(
        "conv2d_grad_weight",
        """conv2d_grad_weight(g, x; stride, padding, dilation, groups, size): the gradient of conv2d with respect to w
        of kernel height and width `size`: w[o, c, i, j] = the sum over (n, p, q) of g[n, o, p, q] * x[n, c', ..], where
        conv2d reads it; what meets padding is left out.""",
        attributes={"size": tuple, **_CONVOLUTION},
        reads=InputReads.WHOLE,
    ),
)

CHAINS = (
    _reduction(
        "tensor_core_matmul",
        f"""tensor_core_matmul(a, b; arithmetic): a[.., M, K] @ b[.., K, N] for matrices, or for batches, as a GPU's
        tensor cores add products ([arithmetic.md](arithmetic.md)): the exact sum of the FP32 results of segments of
        {SEGMENT_TERMS} products, rounded once; NaN where the arithmetic gives none. arithmetic:
        {", ".join(ARITHMETICS)}.""",
        Family.CHAIN,
        tuple(
            Signature((dtype, dtype), dtype, code)
            for code, arithmetic in enumerate(ARITHMETICS.values())
            for dtype in FLOATS
            if dtype in arithmetic.terms
        ),
        reads=InputReads.OWN_RULE,
        attributes={"arithmetic": str},
    ),
)
