"""Tensors made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.table import Context, Scalar, rule, storage
from roundlog.program import DType


def _dtype(c: Context, dtype: torch.dtype | None) -> DType:
    return DType.F32 if dtype is None else storage(dtype)


@rule("full")
def full(c: Context, shape: Sequence[int], value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(value, Value):
        return c.builder.expand(c.builder.convert(value, storage(c.node.meta["val"].dtype)), shape)
    return c.builder.constant(value, storage(c.node.meta["val"].dtype), shape)


@rule("full_like")
def full_like(c: Context, x: Value, value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(value, Value):
        return c.builder.expand(c.builder.convert(value, storage(c.node.meta["val"].dtype)), c.shape(x))
    return c.builder.constant(value, c.dtype(x) if dtype is None else storage(dtype), c.shape(x))


@rule("zeros_like", "empty_like", "new_zeros", "new_empty", "new_empty_strided")
def zeros_like(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    traced = c.node.meta["val"]
    return c.builder.constant(0, storage(traced.dtype), tuple(traced.shape))


@rule("ones_like")
def ones_like(c: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return full_like(c, x, 1, dtype=dtype)


@rule("zeros", "ones", "empty", "empty_permuted")
def filled(c: Context, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Value | None:
    # Memory that is never read may have any dtype; `None` is what reading it would find.
    if "empty" in str(c.node.target) and dtype not in (None, torch.float32, torch.int64, torch.int32, torch.bool):
        return None
    return c.builder.constant(1 if "ones" in str(c.node.target) else 0, _dtype(c, dtype), shape)


@rule("scalar_tensor")
def scalar_tensor(c: Context, value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(value, Value):
        return c.builder.convert(value, storage(c.node.meta["val"].dtype))
    return c.builder.constant(value, _dtype(c, dtype))


@rule("fill.Scalar")
def fill(c: Context, x: Value, value: Scalar) -> Value:
    return c.builder.constant(value, c.dtype(x), c.shape(x))


@rule("zero")
def zero(c: Context, x: Value) -> Value:
    return fill(c, x, 0)


@rule("arange")
def arange(c: Context, *args: Scalar, dtype: torch.dtype | None = None, **_: Any) -> Value:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) > 2 else 1)
    traced = c.node.meta["val"]
    if any(not isinstance(item, int) for item in (start, end, step)):
        raise CaptureError("counts in fractions: count in integers and multiply")
    count = len(range(int(start), int(end), int(step)))
    return c.builder.convert(c.iota(count, int(start), int(step)), storage(traced.dtype))


@rule("eye", "eye.m")
def eye(c: Context, rows: int, columns: int | None = None, **_: Any) -> Value:
    row = c.builder.reshape(c.iota(rows), (rows, 1))
    same = c.op("eq", row, c.iota(rows if columns is None else columns))
    return c.builder.convert(same, storage(c.node.meta["val"].dtype))
