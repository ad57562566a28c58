"""Exact products of BF16 matrices in two stages on CUDA devices: tensor cores decide most elements, and FP64 sums are
for the others. No device has run any of this yet.

A block of G groups of L products, each added to the sum before, from zero on, is summed by tensor cores that truncate
terms to F fractional bits below a group's largest exponent, add exactly, and round toward zero to FP32
(docs/arithmetic.md). Let P be the sum of the magnitudes of the block's products. Nothing makes a magnitude larger, so
that all sums are at most P, and with them the largest term of every group, whose exponent a normal term has. Each of
the L products of a group, and the sum that they are added to but for the first group's zero, errs by at most 2^-F P by
truncation, and the group's result by 2^-23 P by rounding; together

    P ((L + (L + 1) (G - 1)) 2^-F + G 2^-23).

Over all blocks, the P add up to at most the product of the two lines' norms (Cauchy and Schwarz). FP64 adds the
blocks' sums with an error of at most 2^-53 of that for each. docs/numerics.md says why logs stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import sqrt
from warnings import warn

import torch

from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.kernels.cuda.block_sum_trial import first_wrong_block_sum
from roundlog.kernels.cuda.tensor_cores import ProductKernels, family, tensor_of, tried, vectors, verdict
from roundlog.kernels.tensor_core_products import GroupArithmetic
from roundlog.number_format import BFLOAT16

DEPTHS = 64, 32, 16
"""Terms of a block: the longer, the fewer sums FP64 has to add, and the larger the bound."""
LEAST_TERMS, MOST_TERMS = 128, 1 << 14
MOST_DOUBT = 700 * 2.0**-23
"""Most of a block's bound times the square root of the terms: of normally distributed operands, one element of eight or
nine is in doubt there."""
SHARE = 8
"""If more than one of so many elements is in doubt, FP64 takes the whole product."""

_SLACK = 1.0 + 2.0**-16
"""For the rounding of norms, which are FP64 sums of at most MOST_TERMS terms, and of what is made of them."""


@dataclass(frozen=True, slots=True)
class LineBounds:
    """Factors of the error bounds of FP64 sums, as lines of the operands have them."""

    rows: torch.Tensor
    """f64[B, M]: norms of rows, times gamma."""
    columns: torch.Tensor
    """f64[B, N]: norms of columns."""
    gamma: float
    factor: float
    """Times that bound is what FP64 sums have to be away from where rounding changes, not to be marked."""


@dataclass(frozen=True, slots=True)
class StagedProduct:
    """Product of two matrices, of which most elements are decided."""

    rounded: torch.Tensor
    """f32[B, M, N]: numbers of the format; nothing of use for elements in doubt."""
    elements: torch.Tensor
    """int64[n], those in doubt, ascending flat indices."""
    sums: torch.Tensor
    """f64[n]: their sums, in FP64."""


def bound_of_block(arithmetic: GroupArithmetic, deep: int) -> float:
    """Error of a block of `deep` terms, as a share of the sum of its products' magnitudes."""
    terms, groups = arithmetic.terms, -(-deep // arithmetic.terms)
    truncated = terms + (terms + 1) * (groups - 1)
    return float(truncated * 2.0**-arithmetic.fraction_bits + groups * 2.0**-23)


def depth_of(arithmetic: GroupArithmetic, terms: int) -> int | None:
    """Terms of a block, for sums of so many; None if FP64 shall take the whole product."""
    if not LEAST_TERMS <= terms <= MOST_TERMS:
        return None
    fitting = (deep for deep in DEPTHS if bound_of_block(arithmetic, deep) * sqrt(terms) <= MOST_DOUBT)
    return next(fitting, None)


def ratio_of(arithmetic: GroupArithmetic, deep: int, terms: int, gamma: float, factor: float) -> float:
    """The distance from where rounding changes that a sum by blocks needs to be certain, and never marked by FP64
    sums, in units of the bound of those."""
    of_blocks = bound_of_block(arithmetic, deep) + -(-terms // deep) * 2.0**-53
    return (of_blocks / gamma + factor + 2.0) * _SLACK


def multiply(
    a: torch.Tensor, b: torch.Tensor, bounds: LineBounds, block: int, arithmetic: GroupArithmetic
) -> StagedProduct | None:
    """a: bf16[B, M, K], b: bf16[B, K, N], of any strides, nothing empty, on one device, whose tensor cores are those of
    the arithmetic. block: terms of a block of FP64 sums. None if FP64 shall take the whole product."""
    from roundlog.kernels.cuda import bf16_product_kernels as kernels

    terms = a.shape[2]
    deep = depth_of(arithmetic, terms)
    if deep is None:
        return None
    ratio = ratio_of(arithmetic, deep, terms, bounds.gamma, bounds.factor)
    rounded, doubts = kernels.decide(a, b, bounds.rows, bounds.columns, ratio, arithmetic, deep)
    if SHARE * int(doubts.sum()) > doubts.numel():
        return None
    elements = doubts.view(-1).nonzero().squeeze(1)
    return StagedProduct(rounded, elements, kernels.sum_elements(a, b, elements, block))


def first_wrong(device: torch.device, arithmetic: GroupArithmetic) -> str | None:
    """The first element of a test by which a device shows another block's sum than the arithmetic's, or that it decides
    otherwise than FP64 does, or sums otherwise; None if there is none.

    The first trial proves what the bound is derived from (`roundlog.kernels.cuda.block_sum_trial`); the others, on the
    operands by which tensor cores are tried, that nothing is decided wrongly at the ends of the range, nor at those of
    tiles, and that FP64's sums err by no more than they may."""
    from roundlog.kernels.cuda import bf16_product_kernels as kernels

    for layout, deep in enumerate(DEPTHS):
        wrong_sum = first_wrong_block_sum(device, arithmetic, deep, layout)
        if wrong_sum is not None:
            return wrong_sum
    for test, left, right in vectors(BFLOAT16):
        a, b = (tensor_of(x if x.ndim == 3 else x[None], "bf16") for x in (left, right))
        wide, other = a.double(), b.double()
        exact = wide @ other
        rows, columns = (torch.linalg.vector_norm(x, dim=dim) for x, dim in ((wide, 2), (other, 1)))
        x, y, of_rows, of_columns = (one.to(device) for one in (a, b, rows, columns))
        for deep in DEPTHS:
            # FP64 sums of so few terms err by less.
            ratio = ratio_of(arithmetic, deep, a.shape[2], 2.0**-40, 1.0) * 2.0**-40
            decided = kernels.decide(x, y, of_rows, of_columns, ratio, arithmetic, deep)
            rounded, doubts = (one.cpu() for one in decided)
            # Decided elements are far from ties, so that rounding to FP32 on the way changes nothing.
            wrong = ~doubts & (rounded != exact.to(torch.bfloat16).float())
            if wrong.any():
                return f"element {int(wrong.view(-1).nonzero()[0])} of the test {test!r}, in blocks of {deep} terms"
        some = torch.arange(0, exact.numel(), 7)
        sums = kernels.sum_elements(x, y, some.to(device), kernels.TERMS).cpu()
        limit = (rows[..., None] * columns[:, None]).view(-1)[some] * 2.0**-40
        far = (exact.view(-1)[some] - sums).abs() > limit
        if far.any():
            return f"element {int(some[far][0])} of the test {test!r}, summed in FP64"
    return None


@cache
def proven(device: torch.device) -> GroupArithmetic | None:
    """The arithmetic of a CUDA device's tensor cores, if it is known, and the device has agreed with the CPU on
    products by them, and with FP64 on products in two stages. Warns if the last is not so."""
    name = family(device)
    if name is None or verdict(device, name, "bf16").way is not ProductKernels.NATIVE:
        return None
    arithmetic = GroupArithmetic.of(ARITHMETICS[name], "bf16")
    wrong = tried(lambda: first_wrong(device, arithmetic))
    if wrong is not None:
        warn(f"BF16 products take FP64 alone on {device}, slower, to the same bits: {wrong}", stacklevel=2)
    return arithmetic if wrong is None else None


def takes(device: torch.device, terms: int) -> bool:
    """Whether sums of so many terms are worth it, on a CUDA device that has proven itself."""
    arithmetic = proven(device)
    return arithmetic is not None and depth_of(arithmetic, terms) is not None


def certify(a: torch.Tensor, b: torch.Tensor, bounds: LineBounds, block: int) -> StagedProduct | None:
    """`multiply` by the arithmetic of the operands' device; None, too, where the device has not proven itself."""
    arithmetic = proven(a.device)
    return None if arithmetic is None else multiply(a, b, bounds, block, arithmetic)
