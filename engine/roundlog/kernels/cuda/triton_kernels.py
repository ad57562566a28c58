"""The loops of `roundlog.kernels.marking`, `roundlog.kernels.tape` and `roundlog.randomness` on CUDA, in Triton, to
the bit. Imports triton: only `roundlog.kernels.cuda` and who asks it import this.

Marking: the first kernel reads the FP64 output once, writes what it rounds to, and counts what it marks, line by line
(a line is 128 neighbouring elements). The running total of the counts says where every line's marked elements belong,
so the second kernel, which reads only the lines that have some, puts them there in ascending order: no atomics, no
sorting, and the same order every time.

Launched with `enable_fp_fusion=False`: bounds are products and sums, `d * factor + |y| * 2u`, which the compilers (LLVM
and ptxas) would otherwise contract to FMA, and then round once where the reference rounds twice. What is left is IEEE
754's + - x in FP64, and the conversion to FP32 to nearest, ties to even (`cvt.rn.f32.f64`), which keeps subnormal
numbers: none of it is an `.ftz` instruction. Addresses are 64 bits wide.

Random numbers are integers alone, but for the last step, which is exact.

Tapes: one kernel for all tapes: a tape is a constant of it, from which Triton unrolls the instructions, and nothing
else that a program says becomes code. Every value stays in registers from the inputs' read to the outputs' write.

IEEE 754 has to be asked for. Triton's FP32 `/` and `sqrt` are approximations, `div_rn` and `sqrt_rn` flush subnormal
numbers in some versions, as `floor` does in all: these three are taken in FP64, whose result rounds to the right one
(53 >= 2 * 24 + 2). `-x` is 0 - x there, which makes +0 of +0. What could be contracted to FMA is kept apart by
`enable_fp_fusion=False`. Bools are 1.0 and 0.0, and numbers of BF16 FP32 numbers, as on the CPU; they are converted by
their words, because devices before Hopper, and Triton's interpreter, have ways of their own to round.
"""

from __future__ import annotations

from itertools import chain

import torch
import triton
import triton.language as tl

from roundlog.kernels import tape as of
from roundlog.kernels.marking import TWO_UNITS
from roundlog.kernels.tape import BF16, BOOL, F32, Tape
from roundlog.number_format import BFLOAT16

LINE = tl.constexpr(128)
LINES = tl.constexpr(8)
"""Lines that one program takes."""

_TWO_UNITS = tl.constexpr(TWO_UNITS)
_LARGEST = tl.constexpr(float(torch.finfo(torch.float32).max))

FULL, RELATIVE = 0, 1
_FULL = tl.constexpr(FULL)

AmbiguousPart = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The marked elements, on the CPU: int64[n], ascending flat indices; float64[n], the approximations there; float64[n],
their bounds."""


@triton.jit
def _bounds(v, first, within, inside, d, relative, absolute, form: tl.constexpr):
    """d of the elements first + within, whose approximations are v."""
    if form == _FULL:
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
    y, d, out, counts, size,
    relative: tl.float64, absolute: tl.float64, factor: tl.float64, form: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    first = program * (LINES * LINE)
    within = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    inside = first + within < size
    v = tl.load(y + first + within, mask=inside, other=0.0)
    bound = _bounds(v, first, within, inside, d, relative, absolute, form)
    low, marked = _round(v, bound, factor)
    # + 0: an inexact operator's zero is +0.
    tl.store(out + first + within, low + 0.0, mask=inside)
    line = program * LINES + tl.arange(0, LINES)
    tl.store(counts + line, tl.sum((marked & inside).to(tl.int32), axis=1), mask=line * LINE < size)


@triton.jit
def _collect(
    y, d, counts, ends, indices, values, bounds,
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
        bound = _bounds(v, first, within, inside, d, relative, absolute, form)
        marked = _round(v, bound, factor)[1] & inside
        start = tl.load(ends + line, mask=line * LINE < size, other=0) - count
        place = start[:, None] + tl.cumsum(marked.to(tl.int32), axis=1) - 1
        tl.store(indices + place, first + within, mask=marked)
        tl.store(values + place, v, mask=marked)
        tl.store(bounds + place, bound, mask=marked)


def mark_flat(
    y: torch.Tensor, d: torch.Tensor | None, factor: float, *, relative: float = 0.0, absolute: float = 0.0
) -> tuple[torch.Tensor, AmbiguousPart]:
    """y: float64[n], not empty; d: float64[n], or None for d = |y| * relative + absolute. All contiguous, on one
    device. Returns float32[n], and what is marked."""
    if d is None:
        return _mark(y, y, relative, absolute, factor, RELATIVE)
    return _mark(y, d, 0.0, 0.0, factor, FULL)


def _mark(
    y: torch.Tensor, d: torch.Tensor, relative: float, absolute: float, factor: float, form: int
) -> tuple[torch.Tensor, AmbiguousPart]:
    size = y.numel()
    lines = triton.cdiv(size, LINE.value)
    grid = (triton.cdiv(lines, LINES.value),)
    out = torch.empty(size, dtype=torch.float32, device=y.device)
    counts = torch.empty(lines, dtype=torch.int32, device=y.device)
    numbers = relative, absolute, factor
    with torch.cuda.device_of(y):
        _round_and_count[grid](y, d, out, counts, size, *numbers, form=form, enable_fp_fusion=False)
        ends = counts.cumsum(0, dtype=torch.int64)
        # The one place where the host waits for the device: how much memory it takes is known only now.
        found = int(ends[-1])
        near = torch.empty((3, found), dtype=torch.int64, device=y.device)
        indices, values, bounds = near[0], near[1].view(torch.float64), near[2].view(torch.float64)
        if found:
            _collect[grid](
                y, d, counts, ends, indices, values, bounds, size, *numbers, form=form, enable_fp_fusion=False
            )
    # They leave the device all at once.
    indices, values, bounds = near.cpu()
    return out, (indices, values.view(torch.float64), bounds.view(torch.float64))


BLOCKS = tl.constexpr(128)
"""Blocks of eight 32-bit words that one program makes."""

_M0, _M1 = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
_W0, _W1 = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def _put(out, at, word, size):
    """The two halves of a 64-bit word, low half first, as numbers in [0, 1)."""
    low, high = (word >> 8) & 0xFFFFFF, word >> 40
    tl.store(out + at, low.to(tl.int32).to(tl.float32) * 2.0**-24, mask=at < size)
    tl.store(out + at + 1, high.to(tl.int32).to(tl.float32) * 2.0**-24, mask=at + 1 < size)


@triton.jit
def _uniform(out, size, seed: tl.uint64, stream: tl.uint64):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    m0, m1 = tl.full([BLOCKS], _M0, tl.uint64), tl.full([BLOCKS], _M1, tl.uint64)
    w0, w1 = tl.full([BLOCKS], _W0, tl.uint64), tl.full([BLOCKS], _W1, tl.uint64)
    none = tl.full([BLOCKS], 0, tl.uint64)
    # NumPy increments the counter before it makes a block.
    c0, c1, c2, c3 = block.to(tl.uint64) + 1, none, none, none
    k0, k1 = none + seed.to(tl.uint64), none + stream.to(tl.uint64)
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(m0, c0), tl.umulhi(m1, c2)
        low0, low1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    at = block * 8
    _put(out, at, c0, size)
    _put(out, at + 2, c1, size)
    _put(out, at + 4, c2, size)
    _put(out, at + 6, c3, size)


def uniform(key: tuple[int, int], size: int, device: torch.device) -> torch.Tensor:
    """float32[size], element i = (word i of the stream >> 8) * 2^-24. key: two integers of 64 bits."""
    out = torch.empty(size, device=device)
    if size:
        with torch.cuda.device_of(out):
            _uniform[(triton.cdiv(size, 8 * BLOCKS.value),)](out, size, *key, enable_fp_fusion=False)
    return out


BLOCK = 1024

_ADD, _SUB, _MUL, _DIV, _SQRT, _NEG, _ABS, _FLOOR, _MAXIMUM, _MINIMUM = map(
    tl.constexpr, (of.ADD, of.SUB, of.MUL, of.DIV, of.SQRT, of.NEG, of.ABS, of.FLOOR, of.MAXIMUM, of.MINIMUM)
)
_EQ, _LT, _LE, _AND, _OR, _NOT, _WHERE = map(tl.constexpr, (of.EQ, of.LT, of.LE, of.AND, of.OR, of.NOT, of.WHERE))
_SIGN = tl.constexpr(-(2**31))
_ROUND, _NAN = tl.constexpr(of.ROUND), tl.constexpr(BFLOAT16.nan << 16)

_WHOLE, _SCALAR = tl.constexpr(0), tl.constexpr(1)
_READS = 3
"""Ways to read an input. From here on they are those of inputs in BF16."""
_TO_BOOL, _TO_BF16 = tl.constexpr(BOOL), tl.constexpr(BF16)

_KINDS = {torch.float32: F32, torch.bool: BOOL, torch.bfloat16: BF16}
_WORDS = {torch.bool: torch.uint8, torch.bfloat16: torch.int16}


@triton.jit
def _do(code: tl.constexpr, a, b, c):
    if code == _ADD:
        return a + b
    elif code == _SUB:
        return a - b
    elif code == _MUL:
        return a * b
    elif code == _DIV:
        return (a.to(tl.float64) / b.to(tl.float64)).to(tl.float32)
    elif code == _SQRT:
        return tl.sqrt(a.to(tl.float64)).to(tl.float32)
    elif code == _NEG:
        return (a.to(tl.int32, bitcast=True) ^ _SIGN).to(tl.float32, bitcast=True)
    elif code == _ABS:
        return tl.abs(a)
    elif code == _FLOOR:
        return tl.floor(a.to(tl.float64)).to(tl.float32)
    elif code == _MAXIMUM:
        return tl.where((a > b) | (a != a), a, b)
    elif code == _MINIMUM:
        return tl.where((a < b) | (a != a), a, b)
    elif code == _EQ:
        return tl.where(a == b, 1.0, 0.0)
    elif code == _LT:
        return tl.where(a < b, 1.0, 0.0)
    elif code == _LE:
        return tl.where(a <= b, 1.0, 0.0)
    elif code == _AND:
        return a * b
    elif code == _OR:
        return tl.where(a > b, a, b)
    elif code == _NOT:
        return 1.0 - a
    elif code == _WHERE:
        return tl.where(a != 0.0, b, c)
    elif code == _ROUND:
        words = a.to(tl.int32, bitcast=True)
        nearest = (words + 0x7FFF + ((words >> 16) & 1)) & -0x10000
        return tl.where(a != a, _NAN, nearest).to(tl.float32, bitcast=True)
    else:
        return a


@triton.jit
def _play(
    inputs, inners, counts, outputs, bad, size,
    code: tl.constexpr, written: tl.constexpr, kinds: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    # Five numbers an instruction and two an output, in a row: not every Triton knows tuples of tuples.
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < size
    values = ()
    for i in tl.static_range(len(kinds)):
        # A number, `_READS`, that Triton takes compiled and interpreted.
        if kinds[i] % 3 == _WHOLE:
            x = tl.load(inputs[i] + at, mask=inside, other=0)
        elif kinds[i] % 3 == _SCALAR:
            x = tl.load(inputs[i] + at * 0)
        else:
            x = tl.load(inputs[i] + (at // inners[i]) % counts[i], mask=inside, other=0)
        if kinds[i] < 3:
            x = x.to(tl.float32)
        else:
            x = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        # Triton knows no unpacking, and neither annotations of variables.
        values = values + (x,)  # type: ignore[assignment]  # noqa: RUF005
    wrong = at < 0
    for i in tl.static_range(0, len(code), 5):
        a, b, c = values[code[i + 1]], values[code[i + 2]], values[code[i + 3]]  # type: ignore[var-annotated]
        r = _do(code[i], a, b, c)
        if code[i + 4]:
            wrong = wrong | ~(tl.abs(r) <= _LARGEST)
        values = values + (r,)  # type: ignore[assignment]  # noqa: RUF005
    for i in tl.static_range(len(outputs)):
        r = values[written[2 * i]]
        if written[2 * i + 1] == _TO_BOOL:
            tl.store(outputs[i] + at, (r != 0.0).to(tl.uint8), mask=inside)
        elif written[2 * i + 1] == _TO_BF16:
            tl.store(outputs[i] + at, (r.to(tl.int32, bitcast=True) >> 16).to(tl.int16), mask=inside)  # type: ignore[attr-defined]
        else:
            tl.store(outputs[i] + at, r, mask=inside)
    if tl.sum((wrong & inside).to(tl.int32), axis=0) > 0:
        tl.store(bad, 1)


def play(
    tape: Tape,
    inputs: list[torch.Tensor],
    patterns: list[tuple[int, int]],
    outputs: list[torch.Tensor],
    bad: torch.Tensor,
) -> None:
    """Run a tape over the elements of its outputs.

    inputs: contiguous FP32, BF16 or bool; element e of an output is made of element (e // inner) % count of each,
    (inner, count) being its pattern. outputs: contiguous, of such dtypes, of one size, not empty, to be written. bad:
    int32, zero; made 1 if a result that has to be finite is not. All on one device."""
    size = outputs[0].numel()
    reads = (0 if pattern == (1, size) else 1 if pattern[1] == 1 else 2 for pattern in patterns)
    kinds = tuple(read + _READS * (x.dtype == torch.bfloat16) for read, x in zip(reads, inputs, strict=True))
    written = tuple((value, _KINDS[x.dtype]) for value, x in zip(tape.outputs, outputs, strict=True))
    with torch.cuda.device_of(bad):
        _play[(triton.cdiv(size, BLOCK),)](
            tuple(_words(x) for x in inputs),
            tuple(inner for inner, _ in patterns),
            tuple(count for _, count in patterns),
            tuple(_words(x) for x in outputs),
            bad,
            size,
            code=tuple(chain.from_iterable(tape.instructions)),
            written=tuple(chain.from_iterable(written)),
            kinds=kinds,
            block=BLOCK,
            enable_fp_fusion=False,
        )


def _words(x: torch.Tensor) -> torch.Tensor:
    other = _WORDS.get(x.dtype)
    return x if other is None else x.view(other)
