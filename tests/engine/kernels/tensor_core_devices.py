"""Tensor cores for Triton's interpreter, whose own dots are numpy's: devices as they could be, and devices that lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from roundlog.definitions.tensor_core import ARITHMETICS


@dataclass(frozen=True)
class TensorCores:
    """Tensor cores. What docs/arithmetic.md says is not known of them may be one thing or another."""

    fraction_bits: int
    terms: int
    least: int
    """Exponent of the least normal operand."""
    exponents: str = "as encoded"
    """Those of zeros and of subnormal numbers; or "none" of zeros, or "normalised" besides."""
    flushes: bool = False
    """Whether subnormal operands, and results, are taken as zeros."""
    nearest: bool = False
    """Whether results are rounded to nearest, as IEEE 754 has it: no such device is known."""
    backwards: bool = False
    """Whether the groups of a dot are taken in reverse order, as a compiler could take them."""
    smallest: float = 2.0**-126
    """Results below it are dropped."""

    @classmethod
    def of(cls, name: str, format: str, **other: Any) -> TensorCores:
        arithmetic = ARITHMETICS[name]
        least = -14 if format == "f16" else -126
        one = cls(arithmetic.fraction_bits, arithmetic.terms_of(format), least)
        return replace(one, flushes=format not in arithmetic.subnormals, **other)

    def _exponent(self, x: np.ndarray, least: int) -> np.ndarray:
        normalised = np.where(x == 0, -1000, np.frexp(x)[1] - 1)
        if self.exponents == "normalised":
            return normalised
        return np.where((x == 0) & (self.exponents == "none"), -1000, np.maximum(normalised, least))

    def _group(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """c: [..., M, N], a: [..., M, T], b: [..., T, N], FP64 numbers."""
        # Infinities and NaN have no value by the standard; here they are some number.
        a, b, c = (np.nan_to_num(x, nan=0.0, posinf=1.0, neginf=-1.0) for x in (a, b, c))
        exponents = self._exponent(a, self.least)[..., None] + self._exponent(b, self.least)[..., None, :, :]
        if self.flushes:
            a, b = (np.where(np.abs(x) < 2.0**self.least, 0.0, x) for x in (a, b))
        largest = np.maximum(exponents.max(axis=-2), self._exponent(c, -126))
        place = np.maximum(largest, -133) - self.fraction_bits
        n = np.trunc(np.ldexp(a[..., None] * b[..., None, :, :], -place[..., None, :]))
        total = n.sum(axis=-2) + np.trunc(np.ldexp(c, -place))
        excess = np.maximum(np.frexp(total)[1] - 24, 0)
        rounded = np.rint if self.nearest else np.trunc
        result = np.ldexp(rounded(np.ldexp(total, -excess)), excess + place)
        return np.where(np.abs(result) < self.smallest, 0.0, np.clip(result, -(2.0**127), 2.0**127))

    def dot(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """c: f32[..., M, N]; a: f64[..., M, K], b: f64[..., K, N], K whole groups."""
        total = c.astype(np.float64)
        begins = range(0, a.shape[-1], self.terms)
        for begin in reversed(begins) if self.backwards else begins:
            total = self._group(total, a[..., begin : begin + self.terms], b[..., begin : begin + self.terms, :])
        return total.astype(np.float32)


MISPLACED = ("a batch", "rows", "columns")
"""Parts that kernels may read wrongly although they are right about one tile."""


def misplaced(what: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands as kernels read them that take the first matrix of a batch for all others, or the first tile of rows, or
    of columns. a: [..., M, K], b: [..., K, N]."""
    a, b = a.clone(), b.clone()
    if what == "a batch" and b.ndim == 3:
        b[:] = b[0].clone()
    if what == "rows" and a.shape[-2] > 128:
        a[..., 128:, :] = a[..., : a.shape[-2] - 128, :].clone()
    if what == "columns" and b.shape[-1] > 128:
        b[..., 128:] = b[..., : b.shape[-1] - 128].clone()
    return a, b


def _numbers(handle: Any) -> np.ndarray:
    """What a block of the interpreter holds; numbers of BF16 are words there."""
    if handle.dtype.scalar.is_bf16():
        return (handle.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return handle.data.astype(np.float64)


@contextmanager
def computing(cores: TensorCores, tile: int = 32) -> Iterator[None]:
    """Dots in the interpreter of this process are those of tensor cores, and tiles small."""
    import triton
    from roundlog.kernels.cuda import tensor_core_kernels as kernels
    from triton.runtime import interpreter

    builder, right = interpreter.InterpreterBuilder, interpreter.InterpreterBuilder.create_dot
    sizes = kernels.ROWS, kernels.COLUMNS, kernels.TERMS

    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        return interpreter.TensorHandle(cores.dot(d.data, _numbers(a), _numbers(b)), d.dtype.scalar)

    patch = getattr(interpreter, "_patch_lang_tensor", None)

    def patched(tensor: Any, *rest: Any) -> None:
        """In Triton 3.4, numbers of a kernel are arrays of one element, which NumPy takes for no index of a range."""
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    if triton.__version__.startswith("3.4."):
        interpreter._patch_lang_tensor = patched
    builder.create_dot, kernels.ROWS, kernels.COLUMNS, kernels.TERMS = dot, tile, tile, tile
    try:
        yield
    finally:
        builder.create_dot = right
        if patch is not None:
            interpreter._patch_lang_tensor = patch
        kernels.ROWS, kernels.COLUMNS, kernels.TERMS = sizes
