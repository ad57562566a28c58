"""`roundlog.kernels.tape` on CUDA, in Triton, to the bit. Imports triton: only `roundlog.kernels.cuda` imports this.

One kernel for all tapes: a tape is a constant of it, from which Triton unrolls the instructions, and nothing else that
a program says becomes code. Every value stays in registers from the inputs' read to the outputs' write.

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
from roundlog.kernels.tape import BF16, BOOL, F32, Assignments
from roundlog.number_format import BFLOAT16

BLOCK = 1024

_ADD, _SUB, _MUL, _DIV, _SQRT, _NEG, _ABS, _FLOOR, _MAXIMUM, _MINIMUM = map(
    tl.constexpr, (of.ADD, of.SUB, of.MUL, of.DIV, of.SQRT, of.NEG, of.ABS, of.FLOOR, of.MAXIMUM, of.MINIMUM)
)
_EQ, _LT, _LE, _AND, _OR, _NOT, _WHERE = map(tl.constexpr, (of.EQ, of.LT, of.LE, of.AND, of.OR, of.NOT, of.WHERE))
_LARGEST = tl.constexpr(float(torch.finfo(torch.float32).max))
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
    tape: Assignments,
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
