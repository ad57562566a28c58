"""Loops over whole tensors on CUDA, compiled by Triton, an optional extra. What a loop does is said, and tested, in
`roundlog.kernels`; without Triton, its reference in torch runs instead, to the same bits."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any
from warnings import warn

import numpy as np
import numpy.typing as npt
import torch

from roundlog.definitions import opcodes
from roundlog.kernels.cuda.tensor_cores import tried
from roundlog.kernels.machine_code import Chain, TapeOperand
from roundlog.kernels.marking import mark_flat
from roundlog.kernels.tape import F32, Tape


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether the kernels of this room can be imported, compiled, and compute a few numbers on this device as those of
    the CPU do, whatever floating-point environment this thread has. Warns if they should and do not."""
    # AMD's devices call themselves cuda, too.
    if torch.version.cuda is None or find_spec("triton") is None:
        return False
    # The CPU's numbers are made here, too.
    agree = tried(lambda: marking_agrees(device) and tape_agrees(device) and philox_agrees(device))
    if agree is not True:
        why = agree or "it does not compute as IEEE 754 says"
        warn(f"Triton does not work on {device}, so that training is slower, to the same bits: {why}", stacklevel=2)
    return agree is True


def marking_agrees(device: torch.device) -> bool:
    """Whether the kernels mark some numbers near rounding boundaries, of every size, as the CPU does."""
    from roundlog.kernels.cuda import triton_kernels as marking

    rng = np.random.default_rng(0)
    y = rng.choice([1.0, -1.0], 5000) * 2.0 ** rng.integers(-160, 130, 5000)
    y *= 1 + rng.integers(0, 4, 5000) * 2.0**-24 + rng.integers(-3, 4, 5000) * 2.0**-50
    y[:6] = 0.0, -0.0, 5e-324, np.inf, -np.inf, np.nan
    d = np.abs(y) * rng.random(5000) * 2.0**-49
    out = np.empty(5000, dtype=np.float32)
    with np.errstate(all="ignore"):
        (near,) = mark_flat(y, d, 1.75, out)
    rounded, found = marking.mark_flat(torch.from_numpy(y).to(device), torch.from_numpy(d).to(device), 1.75)
    here: list[npt.NDArray[Any]] = [out, near.indices, near.y, near.d]
    return all(map(_same_bits, here, (part.cpu().numpy() for part in (rounded, *found))))


def tape_agrees(device: torch.device) -> bool:
    """Whether a tape with every instruction there is gives, of special numbers and others, what it gives on the CPU."""
    from roundlog.kernels.cuda import triton_kernels as on_device

    numbers = [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 0.5, 1.0, 1 + 2.0**-23, -2.5, 3.0]
    numbers += [1e30, 3e38, np.inf, np.nan]
    rng = np.random.default_rng(0)
    pairs = np.array([(a, b) for a in (*numbers, -np.inf) for b in numbers] + rng.standard_normal((2000, 2)).tolist())
    a, b = np.ascontiguousarray(pairs.T.astype(np.float32))
    size, codes = len(a), len(opcodes())
    tape = Tape(tuple((code, 0, 1, 0, 0) for code in opcodes().values()), tuple(range(2, 2 + codes)))
    here = np.empty((codes, size), dtype=np.float32)
    chain = Chain(tape, [TapeOperand(F32, 1, size)] * 2, [F32] * codes, size)
    chain.play([x.ctypes.data for x in (a, b)], [row.ctypes.data for row in here])
    inputs = [torch.from_numpy(x).to(device) for x in (a, b)]
    there = [torch.empty(size, device=device) for _ in range(codes)]
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    on_device.play(tape, inputs, [(1, size)] * 2, there, bad)
    return not bad.any() and all(_same_bits(x, y.cpu().numpy()) for x, y in zip(here, there, strict=True))


def philox_agrees(device: torch.device) -> bool:
    """Whether the kernel for random numbers gives NumPy's words."""
    from roundlog.kernels.cuda import triton_kernels as philox

    key = 2**64 - 3, 2**63 + 5
    words = np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(1500).astype("<u8").view("<u4")
    found = philox.uniform(key, 2999, device).cpu().numpy()
    return _same_bits((words[:2999] >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24), found)


def _same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two tensors have the same bits, any NaN being as good as another."""
    nan = a != a
    return a.shape == b.shape and bool((nan == (b != b)).all()) and a[~nan].tobytes() == b[~nan].tobytes()
