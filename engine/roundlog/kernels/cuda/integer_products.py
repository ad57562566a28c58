"""Exact products of matrices on CUDA devices in the quickest way: integers decide most elements, or tensor cores do,
and FP64 sums are for the others; or FP64 takes the whole. Outputs do not depend on it. No device has run it yet.

Lines are cut into digits of 8 bits, and those products of digits are added up that weigh most (docs/numerics.md has the
bound). The more a line's numbers spread, the more digits they have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from warnings import warn

import numpy as np
import torch

from roundlog.kernels.cuda import bf16_products
from roundlog.kernels.cuda.bf16_products import LineBounds, StagedProduct
from roundlog.kernels.cuda.tensor_cores import tried, vectors
from roundlog.number_format import BFLOAT16, FLOAT32, Format

LEAST_TERMS, MOST_TERMS = 16, 1 << 17
LEVELS = {torch.float32: ((5, 64), (6, 4)), torch.bfloat16: ((3, 64), (5, 4))}
"""Numbers of digits that are tried one after the other. If more than one of so many elements is in doubt, the next one
takes the whole product, and FP64 after the last."""
_LAST_LEVELS: dict[tuple[object, ...], int] = {}
"""The level that the last product of such a dtype and such shapes took: the next step's takes no fewer digits."""
_SIDE = 1024
"""Rows, terms and columns of the products by which ways are timed."""
_GAMMA = 2.0**-40
"""More than FP64 sums of the tests err by, as a share of their magnitudes."""


def multiply(a: torch.Tensor, b: torch.Tensor, bounds: LineBounds, block: int, format: Format) -> StagedProduct | None:
    """The product rounded to a format. a: [B, M, K], b: [B, K, N], of one dtype of LEVELS and of any strides, nothing
    empty, on one device. block: terms of a block of FP64 sums. None if FP64 shall take the whole product."""
    from roundlog.kernels.cuda import bf16_product_kernels, integer_product_kernels

    levels, ratio, sort = LEVELS[a.dtype], bounds.gamma * (bounds.factor + 2.0), (a.dtype, a.shape, b.shape)
    a, b = a.float(), b.float()
    for level in range(_LAST_LEVELS.get(sort, 0), len(levels)):
        digits, share = levels[level]
        rounded, doubts = integer_product_kernels.decide(a, b, ratio, digits, format)
        if share * int(doubts.sum()) <= doubts.numel():
            _LAST_LEVELS[sort] = level
            elements = doubts.view(-1).nonzero().squeeze(1)
            return StagedProduct(rounded, elements, bf16_product_kernels.sum_elements(a, b, elements, block))
    return None


def certify(a: torch.Tensor, b: torch.Tensor, bounds: LineBounds, block: int, format: Format) -> StagedProduct | None:
    """`multiply`, or the product of BF16 matrices by tensor cores, whichever is quicker on the operands' device."""
    by = by_integers(a.device, a.dtype)
    return multiply(a, b, bounds, block, format) if by else bf16_products.certify(a, b, bounds, block)


def takes(device: torch.device, dtype: torch.dtype, terms: int, format: Format) -> bool:
    """Whether `certify` is worth it for sums of so many products, on a CUDA device."""
    if by_integers(device, dtype):
        return LEAST_TERMS <= terms <= MOST_TERMS
    return dtype == torch.bfloat16 and format == BFLOAT16 and bf16_products.takes(device, terms)


@cache
def by_integers(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a CUDA device, which has agreed with FP64 on products by integers, computes those of such a dtype more
    quickly so than in any other way. Warns if it has not agreed."""
    found = tried(lambda: first_wrong(device) or is_quicker(device, dtype))
    if isinstance(found, str):
        warn(f"integers multiply no matrices on {device}, perhaps slower, to the same bits: {found}", stacklevel=2)
    return found is True


def first_wrong(device: torch.device) -> str | None:
    """The first element of a test that a device decides otherwise than FP64 does, or sums otherwise; None if there is
    none."""
    from roundlog.kernels.cuda import bf16_product_kernels, integer_product_kernels

    for test, left, right in vectors(FLOAT32):
        words = (x if x.ndim == 3 else x[None] for x in (left, right))
        a, b = (torch.from_numpy(x.astype(np.uint32).view(np.float32)) for x in words)
        x, y, exact = a.to(device), b.to(device), a.double() @ b.double()
        sums = bf16_product_kernels.sum_elements(x, y, torch.arange(exact.numel(), device=device), 256).cpu()
        limit = a.double().abs() @ b.double().abs() * _GAMMA
        wrong = {"FP64": (sums.view(exact.shape) - exact).abs() > limit}
        for digits in (3, 5, 6):
            decided = integer_product_kernels.decide(x, y, 3 * _GAMMA, digits, FLOAT32)
            rounded, doubts = (one.cpu() for one in decided)
            wrong[f"{digits} digits"] = ~doubts & (rounded != exact.float())
        for way, elements in wrong.items():
            if elements.any():
                return f"element {int(elements.view(-1).nonzero()[0])} of the test {test!r}, by {way}"
    return None


def is_quicker(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a product of normally distributed numbers takes less time by integers than in any other way."""
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, _SIDE, _SIDE, generator=numbers).to(device, dtype) for _ in range(2))
    rows, columns = (torch.linalg.vector_norm(x.double(), dim=dim) for x, dim in ((a, 2), (b, 1)))
    bounds, format = LineBounds(rows * _GAMMA, columns, _GAMMA, 1.0), FLOAT32 if dtype == torch.float32 else BFLOAT16
    ways: list[Callable[[], object]] = [lambda: multiply(a, b, bounds, 256, format), lambda: a.double() @ b.double()]
    if format == BFLOAT16 and bf16_products.takes(device, _SIDE):
        ways.append(lambda: bf16_products.certify(a, b, bounds, 256))
    seconds = [_seconds(device, way) for way in ways]
    return seconds[0] < min(seconds[1:])


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The least of three times, after a first one, in which kernels are compiled."""
    found = []
    for _ in range(4):
        torch.cuda.synchronize(device)
        begun = perf_counter()
        work()
        torch.cuda.synchronize(device)
        found.append(perf_counter() - begun)
    return min(found[1:])
