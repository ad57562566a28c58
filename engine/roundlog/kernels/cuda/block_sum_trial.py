"""Trial of products in two stages: whether tensor cores sum blocks as their arithmetic says, to the last bit.

The bound of `roundlog.kernels.cuda.bf16_products` is derived from the arithmetic of docs/arithmetic.md. What a device
decides by this bound shows little of its sums: they are rounded to BF16, which has 8 bits, and are decided only where
their last bits do not count. So here the leading bits of sums are taken away, and all are decided, by a bound of zero.

Let s be the sum of a block of random numbers, which the CPU's emulation knows; h = s, truncated to 8 bits; m = s - h,
truncated to 8 bits; and c a number that is large beside s. The terms of one element are blocks with the sums

    c, -h, -m, s, -c,

in this order. Each but that of s has one product that is not zero. FP64 adds these sums without a rounding.

* s has 24 bits, so that s - h has at most 16, and r = s - h - m at most 8: it is a number of BF16, and a device that
  computes as it should decides every element, as exactly r.
* A device with another sum, s', does not. Let q be the last of the 24 places of s, and 2^e the largest power of two
  up to |s|. r is a multiple of q below 2^8 q, so that the numbers of BF16 next to it are at most q away. If |s'| is
  2^e or more, s' - s is a multiple of q, and r + s' - s is one of these neighbours, or further away. If |s'| is less,
  so it is, too, since |s' - s| > q, unless |s| is 2^e; but then h = s and r = 0, and s' - s is not. Only a difference
  below 2^-41 may be lost beside c (which is 2^12 where operands are of size 1).

So passing proves, of these operands, in blocks of this depth: terms lose the bits below F, no more and no fewer; groups
have the arithmetic's length and order; their results are rounded toward zero; a block begins at zero, since c, h and m
come before it; and blocks are added in FP64, since an FP32 number of the size of c has no place for r.
`tests/engine/kernels/test_block_sum_trial.py` counts the elements that show each of these. The order of groups is more
than the bound needs: a device with another one is refused, and FP64 computes the same outputs.

Every group of sixteen rows is the one before, half as large and with the other sign, and columns have all sizes with
which elements are left to tensor cores, so that there are several full tiles and nearly all exponents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from roundlog.kernels.tensor_core_products import GroupArithmetic, tensor_core_product

_ROWS, _REPEATS, _COLUMNS = 16, 9, 80
_LEAST, _LARGEST = -40, 96
"""Exponents of the columns' sizes."""
_FAR = 2.0**12
"""c, of a row and a column of size 1."""


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Operands whose sums show all bits of a block's."""

    a: torch.Tensor
    """bf16[1, 144, K], of five blocks."""
    b: torch.Tensor
    """bf16[1, K, 80]."""
    left: torch.Tensor
    """f32[1, 144, 80]: the sums, which are numbers of BF16."""


def _numbers(
    rng: np.random.Generator, shape: tuple[int, int], spread: npt.NDArray[np.int64] | int, negative: float
) -> torch.Tensor:
    """Numbers of BF16 with all fractions, and exponents from -spread to 0."""
    exponents = -rng.integers(0, spread, shape, endpoint=True)
    signs = np.where(rng.random(shape) < negative, -1.0, 1.0)
    return torch.from_numpy(np.ldexp(signs * (1 + rng.integers(0, 128, shape) / 128), exponents)).to(torch.bfloat16)


def _truncated(x: torch.Tensor) -> torch.Tensor:
    """The numbers of BF16 next to FP32 numbers, toward zero, in FP32."""
    return (x.contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32)


def block_sums(arithmetic: GroupArithmetic, deep: int) -> BlockSums:
    """Operands for blocks of `deep` terms, a multiple of 16, made by Philox from the seed 0."""
    rng = np.random.Generator(np.random.Philox(0))
    # From row to row, products lie further apart, and more of them lose bits.
    rows = _numbers(rng, (_ROWS, deep), np.arange(_ROWS)[:, None], 0.5)
    columns = _numbers(rng, (deep, _COLUMNS), 3, 0.25)
    # Sums that grow, so that groups' results are rounded; and sums of pairs that nearly cancel.
    rows[1::2] = rows[1::2].abs()
    rows[::4, 1::2] = -rows[::4, ::2]
    sums = tensor_core_product(rows, columns, replace(arithmetic, segment_terms=deep)).sums[0]
    high = _truncated(sums)
    middle = _truncated(sums - high)
    one = torch.zeros(_ROWS, deep, dtype=torch.bfloat16)
    one[:, 0] = 1
    its = torch.eye(_ROWS, deep, dtype=torch.bfloat16)
    others = torch.ones(3, deep, _COLUMNS)
    others[0], others[1, :_ROWS], others[2, :_ROWS] = _FAR, -high, -middle
    far, of_high, of_middle = others.to(torch.bfloat16)
    a = torch.cat([one, its, its, rows, one], dim=1).repeat(_REPEATS, 1)
    b = torch.cat([far, of_high, of_middle, columns, -far])
    repeats = np.arange(len(a)) // _ROWS
    scales = torch.from_numpy(np.ldexp(np.where(repeats % 2, -1.0, 1.0), -repeats))[:, None]
    sizes = torch.from_numpy(np.ldexp(1.0, np.linspace(_LEAST, _LARGEST, _COLUMNS).round().astype(np.int64)))
    left = (sums.double() - high - middle).repeat(_REPEATS, 1) * scales * sizes
    # Powers of two change no fraction.
    a, b = (a * scales).to(torch.bfloat16), (b * sizes).to(torch.bfloat16)
    return BlockSums(a[None], b[None], left.float()[None])


def first_wrong_block_sum(device: torch.device, arithmetic: GroupArithmetic, deep: int, layout: int) -> str | None:
    """The first element that shows a block's sum which is not the arithmetic's; None if there is none. layout: 0 as a
    layer's product has its operands, 1 or 2 with the right one or the left one transposed, as its derivatives have."""
    from roundlog.kernels.cuda import bf16_product_kernels as kernels

    test = block_sums(arithmetic, deep)
    a, b = test.a.to(device), test.b.to(device)
    if layout == 1:
        b = b.mT.contiguous().mT
    if layout == 2:
        a = a.mT.contiguous().mT
    rows, columns = (torch.ones(x.shape[:2], dtype=torch.float64, device=device) for x in (a, b.mT))
    rounded, doubts = (x.cpu() for x in kernels.decide(a, b, rows, columns, 0.0, arithmetic, deep))
    wrong = (doubts | (rounded != test.left)).view(-1).nonzero()
    if not len(wrong):
        return None
    at = int(wrong[0])
    found = "in doubt" if doubts.view(-1)[at] else f"{float(rounded.view(-1)[at])!r}"
    return f"element {at} of the test of block sums of {deep} terms is {found}, not {float(test.left.view(-1)[at])!r}"
