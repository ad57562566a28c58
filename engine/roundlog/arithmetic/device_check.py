"""Test of a CUDA device on vectors of our own, before the first step: what it computes wrongly is a sentence.

Three kinds of kernels make products of matrices there. FP64 sums, with which exact products begin, have to keep
their error bound, which sums of emulated FP64 numbers do not. Tensor cores, or integers in their place, have to agree
with the CPU's emulation to the bit (`roundlog.kernels.cuda.tensor_cores`). Marking, tapes and random numbers are tried
where they are first asked for (`roundlog.kernels.has_kernels`), and without them torch's kernels compute. No device
has run any of this yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from math import fsum
from warnings import warn

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.formats import UNIT_F64
from roundlog.kernels import has_kernels, own_threads
from roundlog.kernels.environment import right_environment

F64 = npt.NDArray[np.float64]

_SIDE, _TERMS = 32, 600
"""Sums of a test, as rows and columns, and their products. Five tests have 5,120 sums."""
_REMEDY = "use another device, or the CPU"

_EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"
"""Variable of the environment that has cuBLAS, from CUDA 13.0 update 2 on, multiply FP64 matrices as fixed-point
numbers, by integer tensor cores: 1, or 0, as without it. CUBLAS_EMULATION_STRATEGY says of which sizes, and
CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT with how many bits; alone, neither does anything. A program can choose it
for a handle of cuBLAS, too; PyTorch 2.13 does not."""


def _operands() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Matrices whose products test FP64 sums: f32 or bf16 [2, 16, K] and [2, K, 32], by Philox from the seed 0."""
    rng = np.random.Generator(np.random.Philox(0))
    half = _SIDE // 2

    def matrices(spread: int) -> tuple[F64, F64]:
        a, b = (rng.standard_normal(shape) for shape in ((2, half, _TERMS), (2, _TERMS, _SIDE)))
        return a * 2.0 ** rng.integers(-spread, spread, a.shape), b * 2.0 ** rng.integers(-spread, spread, b.shape)

    for test, spread, dtype in (
        ("sums of FP32 products", 1, torch.float32),
        ("sums of BF16 products", 1, torch.bfloat16),
        ("FP32 products of all sizes", 60, torch.float32),
    ):
        a, b = matrices(spread)
        yield test, torch.from_numpy(a).to(dtype), torch.from_numpy(b).to(dtype)
    a, b = matrices(1)
    a[..., 1::2] = -a[..., ::2]
    b[:, 1::2] = b[:, ::2] * (1 + 2.0**-22)
    yield "cancellation", torch.from_numpy(a).float(), torch.from_numpy(b).float()
    # Fixed-point numbers, whose place the largest of a line gives, have no bits for the others.
    a, b = matrices(1)
    a[..., 0], b[:, 0] = a[..., 0] * 2.0**60, b[:, 0] * 2.0**-60
    yield "large factors of small ones", torch.from_numpy(a).float(), torch.from_numpy(b).float()


def _emulates(value: str | None) -> bool:
    """Whether cuBLAS may emulate FP64 by this value of its variable. Only what surely switches it off is no."""
    return value is not None and value.strip() not in ("", "0")


def _wrong_sum(device: torch.device) -> str | None:
    """The first sum of products in FP64 that errs by more than any order of adding them allows."""
    for test, a, b in _operands():
        found = (a.to(device).to(torch.float64) @ b.to(device).to(torch.float64)).cpu().numpy().reshape(-1)
        # A product of FP32 numbers is exact in FP64.
        products = (a.double()[:, :, None] * b.double().mT[:, None]).numpy().reshape(-1, _TERMS)
        # The exact sums, rounded once to FP64.
        exact = np.array([fsum(row) for row in products.tolist()])
        gamma = _TERMS * UNIT_F64 / (1 - _TERMS * UNIT_F64)
        allowed = np.abs(products).sum(-1) * gamma * (1 + 2.0**-30) + np.abs(exact) * UNIT_F64
        # `found - exact` rounds by no more than its own share of what is allowed.
        wrong = np.flatnonzero(~(np.abs(found - exact) <= allowed * (1 + 2.0**-30)))
        if len(wrong):
            at = wrong[0]
            bits, right = (int(x[at : at + 1].view(np.uint64)[0]) for x in (found, exact))
            return f"element {at} of the test {test!r} is {bits:#018x} in FP64, and the sum rounds to {right:#018x}"
    return None


@cache
def fault_of(device: torch.device, name: str, products: frozenset[tuple[str, str]]) -> str | None:
    """Why a device must not compute, as a sentence; None if nothing speaks against it. Warns if its tensor cores must
    not be used, and if the CPU has to compute for it. Once in a process, after its kernels are compiled less than a
    second.

    name: the device's, for people; products: arithmetics of tensor cores and the formats of their operands that a
    program has."""
    emulation = os.environ.get(_EMULATION)
    if _emulates(emulation):
        return (
            f"{_EMULATION} is {emulation!r} here, with which cuBLAS may multiply FP64 matrices by integers on {name} "
            f"({device}), whose errors are not bounded element by element: unset the variable, or set "
            "it to 0, and start again"
        )
    # The answer is kept for the whole process, whatever floating-point environment this thread has.
    with own_threads(), right_environment():
        wrong = _wrong_sum(device)
    if wrong is not None:
        return f"{name} ({device}) adds products otherwise than FP64 does: {wrong}; {_REMEDY}"
    if not has_kernels(device):
        return None
    from roundlog.kernels.cuda.tensor_cores import Difference, verdict

    for arithmetic, format in sorted(products):
        found = verdict(device, arithmetic, format)
        what = f"products of {format} as {arithmetic} has them"
        if isinstance(found.emulated, Difference):
            return f"{name} ({device}) does not compute {what}, not even by integers: {found.emulated}; {_REMEDY}"
        if found.emulated is not None:
            warn(f"{name} ({device}) has no kernel for {what}: the CPU computes them: {found.emulated}", stacklevel=2)
        elif found.native is not None:
            warn(
                f"the tensor cores of {name} ({device}) are refused for {what}, and integers compute them, slower, "
                f"to the CPU's bits: {found.native}; if that is too slow, use another device",
                stacklevel=2,
            )
    return None
