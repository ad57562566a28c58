"""`roundlog.kernels.marking` on CUDA, in Triton, to the bit. Imports triton: only `roundlog.kernels.cuda` imports this.

The first kernel reads the FP64 output once, writes what it rounds to, and counts what it marks, line by line (a line is
128 neighbouring elements). The running total of the counts says where every line's marked elements belong, so the
second kernel, which reads only the lines that have some, puts them there in ascending order: no atomics, no sorting,
and the same order every time.

Launched with `enable_fp_fusion=False`: bounds are products and sums, `d * factor + |y| * 2u`, which the compilers (LLVM
and ptxas) would otherwise contract to FMA, and then round once where the reference rounds twice. What is left is IEEE
754's + - x in FP64, and the conversion to FP32 to nearest, ties to even (`cvt.rn.f32.f64`), which keeps subnormal
numbers: none of it is an `.ftz` instruction. Addresses are 64 bits wide.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roundlog.kernels.marking import TWO_UNITS

LINE = tl.constexpr(128)
LINES = tl.constexpr(8)
"""Lines that one program takes."""

_TWO_UNITS = tl.constexpr(TWO_UNITS)
_LARGEST = tl.constexpr(float(torch.finfo(torch.float32).max))

PRODUCT, FULL, RELATIVE = 0, 1, 2
_PRODUCT, _FULL = tl.constexpr(PRODUCT), tl.constexpr(FULL)

AmbiguousPart = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The marked elements, on the CPU: int64[n], ascending flat indices; float64[n], the approximations there; float64[n],
their bounds."""


@triton.jit
def _bounds(
    v, first, within, inside, d, rows, width, per, relative, absolute,
    form: tl.constexpr,
):  # fmt: skip
    """d of the elements first + within, whose approximations are v."""
    if form == _PRODUCT:
        # Divisions by 64 bits are slow only where they have to be: all but the first fit 32 bits, and the device looks.
        line = first // width
        position = first - line * width + within
        row = line + position // width
        column = row // per * width + position % width
        return tl.load(rows + row, mask=inside, other=0.0) * tl.load(d + column, mask=inside, other=0.0)
    elif form == _FULL:
        return tl.load(d + first + within, mask=inside, other=0.0)
    else:
        return tl.abs(v) * relative + absolute


@triton.jit
def _round(v, bound, factor):
    """(what v rounds to, whether that is in doubt)."""
    reach = bound * factor + tl.abs(v) * _TWO_UNITS
    low = (v - reach).to(tl.float32)
    high = (v + reach).to(tl.float32)
    # NaN differs from itself.
    return low, (low != high) | (tl.abs(low) > _LARGEST)


@triton.jit
def _round_and_count(
    y, d, rows, width, per, out, counts, size,
    relative: tl.float64, absolute: tl.float64, factor: tl.float64, form: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    first = program * (LINES * LINE)
    within = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    inside = first + within < size
    v = tl.load(y + first + within, mask=inside, other=0.0)
    bound = _bounds(v, first, within, inside, d, rows, width, per, relative, absolute, form)
    low, marked = _round(v, bound, factor)
    # + 0: an inexact operator's zero is +0.
    tl.store(out + first + within, low + 0.0, mask=inside)
    line = program * LINES + tl.arange(0, LINES)
    tl.store(counts + line, tl.sum((marked & inside).to(tl.int32), axis=1), mask=line * LINE < size)


@triton.jit
def _collect(
    y, d, rows, width, per, counts, ends, indices, values, bounds,
    size, relative: tl.float64, absolute: tl.float64, factor: tl.float64, form: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    line = program * LINES + tl.arange(0, LINES)
    count = tl.load(counts + line, mask=line * LINE < size, other=0)
    if tl.sum(count, axis=0) > 0:
        first = program * (LINES * LINE)
        within = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
        inside = (first + within < size) & (count > 0)[:, None]
        v = tl.load(y + first + within, mask=inside, other=0.0)
        bound = _bounds(v, first, within, inside, d, rows, width, per, relative, absolute, form)
        marked = _round(v, bound, factor)[1] & inside
        start = tl.load(ends + line, mask=line * LINE < size, other=0) - count
        place = start[:, None] + tl.cumsum(marked.to(tl.int32), axis=1) - 1
        tl.store(indices + place, first + within, mask=marked)
        tl.store(values + place, v, mask=marked)
        tl.store(bounds + place, bound, mask=marked)


def mark_product(
    y: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, factor: float
) -> tuple[torch.Tensor, AmbiguousPart]:
    """y: float64[R C], not empty; rows: float64[R]; columns: float64[Q, C], Q divides R: d[r, c] is the product of
    rows[r] and columns[r // (R / Q), c]. All contiguous, on one device. Returns float32[R C], and what is marked."""
    groups, width = columns.shape
    return _mark(y, columns, rows, width, len(rows) // groups, 0.0, 0.0, factor, PRODUCT)


def mark_flat(
    y: torch.Tensor, d: torch.Tensor | None, factor: float, *, relative: float = 0.0, absolute: float = 0.0
) -> tuple[torch.Tensor, AmbiguousPart]:
    """y: float64[n], not empty; d: float64[n], or None for d = |y| * relative + absolute. All contiguous, on one
    device. Returns float32[n], and what is marked."""
    if d is None:
        return _mark(y, y, y, 1, 1, relative, absolute, factor, RELATIVE)
    return _mark(y, d, y, 1, 1, 0.0, 0.0, factor, FULL)


def _mark(
    y: torch.Tensor,
    d: torch.Tensor,
    rows: torch.Tensor,
    width: int,
    per: int,
    relative: float,
    absolute: float,
    factor: float,
    form: int,
) -> tuple[torch.Tensor, AmbiguousPart]:
    size = y.numel()
    lines = triton.cdiv(size, LINE.value)
    grid = (triton.cdiv(lines, LINES.value),)
    out = torch.empty(size, dtype=torch.float32, device=y.device)
    counts = torch.empty(lines, dtype=torch.int32, device=y.device)
    numbers = relative, absolute, factor
    with torch.cuda.device_of(y):
        _round_and_count[grid](y, d, rows, width, per, out, counts, size, *numbers, form=form, enable_fp_fusion=False)
        ends = counts.cumsum(0, dtype=torch.int64)
        # The one place where the host waits for the device: how much memory it takes is known only now.
        found = int(ends[-1])
        near = torch.empty((3, found), dtype=torch.int64, device=y.device)
        indices, values, bounds = near[0], near[1].view(torch.float64), near[2].view(torch.float64)
        if found:
            _collect[grid](
                y, d, rows, width, per, counts, ends, indices, values, bounds, size, *numbers, form=form,
                enable_fp_fusion=False,
            )  # fmt: skip
    # They leave the device all at once.
    indices, values, bounds = near.cpu()
    return out, (indices, values.view(torch.float64), bounds.view(torch.float64))
