"""Whether this process computes as IEEE 754 says.

Some libraries (anything linked with -ffast-math, `torch.set_flush_denormal`) switch subnormal numbers off, or another
rounding on, for the threads that they start in. Nothing warns of it; the bits are just different ones.
"""

from __future__ import annotations

import numpy as np
import torch

from roundlog.kernels.threads import on_every_thread

_PARALLEL = 1 << 17
"""More elements than one thread is given, so that every thread of the pool answers."""


class MachineError(ArithmeticError):
    """This process does not compute as IEEE 754 says, so that its results would be nobody else's."""


def check_machine(device: torch.device) -> None:
    """Raises MachineError if subnormal numbers are flushed to zero, or sums not rounded to nearest, ties to even, on
    the device, in NumPy, or on a thread of the kernels. Takes some milliseconds."""
    tiny = torch.full((_PARALLEL,), 2.0**-149, device=device)
    wide = tiny.to(torch.float64)
    kept = (tiny + tiny, 2.0**-148), (wide, 2.0**-149), ((wide * 2).to(torch.float32), 2.0**-148)
    if not on_every_thread(_numpy_keeps_subnormal_numbers) or not all(
        bool((x == expected).all()) for x, expected in kept
    ):
        raise MachineError(
            "this process flushes subnormal numbers to zero: find the library (built with -ffast-math) or the call of "
            "torch.set_flush_denormal that switched it on, and leave it out"
        )
    one = torch.ones(_PARALLEL, dtype=torch.float64, device=device)
    ties = (one + 2.0**-53, 1.0), (one + 3 * 2.0**-53, 1 + 2.0**-51), (-one - 3 * 2.0**-53, -1 - 2.0**-51)
    if not on_every_thread(_numpy_rounds_to_nearest) or not all(bool((x == expected).all()) for x, expected in ties):
        raise MachineError("this process does not round to nearest, ties to even: find what changes the rounding mode")


def _numpy_keeps_subnormal_numbers() -> bool:
    with np.errstate(all="ignore"):
        small = np.full(2, 2.0**-149, dtype=np.float32)
        return bool((small + small)[0] == np.float32(2.0**-148) and small.astype(np.float64)[0] == 2.0**-149)


def _numpy_rounds_to_nearest() -> bool:
    array = np.array([1.0, 1.0, -1.0]) + np.array([1, 3, -3]) * 2.0**-53
    return bool(array.tolist() == [1.0, 1 + 2.0**-51, -1 - 2.0**-51])
