"""Whether this process computes as IEEE 754 says.

Some libraries (anything linked with -ffast-math, `torch.set_flush_denormal`) switch subnormal numbers off, or another
rounding on, for the threads that they start in. Nothing warns of it; the bits are just different ones. So every step is
executed in the right environment, and looked at again when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from roundlog.arithmetic.device_check import fault_of
from roundlog.kernels.environment import ENVIRONMENT, computes_right, right_environment
from roundlog.kernels.threads import disturbed, on_every_thread

T = TypeVar("T")

_PARALLEL = 1 << 17
"""More elements than one thread is given, so that every thread of the pool answers."""


class MachineError(ArithmeticError):
    """This process does not compute as IEEE 754 says, so that its results would be nobody else's."""


def check_machine(device: torch.device, products: Collection[tuple[str, str]] = ()) -> None:
    """Raises MachineError if subnormal numbers are flushed to zero, or sums not rounded to nearest, ties to even, on
    the device, in NumPy, or on a thread of the kernels; or if a CUDA device makes products of matrices otherwise than
    the CPU. Takes some milliseconds, on a CUDA device once less than a second, beside what its compiler takes.

    products: arithmetics of tensor cores, with the formats of their operands, that will be used."""
    tiny = torch.full((_PARALLEL,), 2.0**-149, device=device)
    wide = tiny.to(torch.float64)
    kept = (tiny + tiny, 2.0**-148), (wide, 2.0**-149), ((wide * 2).to(torch.float32), 2.0**-148)
    if not all(bool((x == expected).all()) for x, expected in kept):
        raise MachineError(
            "this process flushes subnormal numbers to zero: find the library (built with -ffast-math) or the call of "
            "torch.set_flush_denormal that switched it on, and leave it out"
        )
    one = torch.ones(_PARALLEL, dtype=torch.float64, device=device)
    ties = (one + 2.0**-53, 1.0), (one + 3 * 2.0**-53, 1 + 2.0**-51), (-one - 3 * 2.0**-53, -1 - 2.0**-51)
    if not all(bool((x == expected).all()) for x, expected in ties):
        raise MachineError("this process does not round to nearest, ties to even: find what changes the rounding mode")
    # Arithmetic is tried even where the register can be read, to confirm what the register says.
    if not on_every_thread(ENVIRONMENT.is_right) or not on_every_thread(computes_right):
        raise MachineError(
            "a thread of this process flushes subnormal numbers to zero, or does not round to nearest, ties to even: "
            "find the library or the call that changes it, and leave it out"
        )
    if device.type == "cuda":
        fault = fault_of(tiny.device, torch.cuda.get_device_name(device), frozenset(products))
        if fault is not None:
            raise MachineError(fault)


class DisturbedError(MachineError):
    """While a step was computed, something in this process switched the floating-point environment."""


@contextmanager
def right_float_mode(what: str) -> Iterator[None]:
    """Context in which everything is computed in the right floating-point environment, on this thread and on those of
    the kernels; afterwards this thread has its own again. what: what is computed, for a sentence.

    Raises DisturbedError if one of them was in another environment in the end."""
    before = disturbed()
    with right_environment():
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        if not ENVIRONMENT.is_right() or disturbed() != before:
            raise DisturbedError(
                f"{what}: while it was computed, a library that was loaded (built with -Ofast or -ffast-math), "
                "torch.set_flush_denormal or fesetround changed how this process computes: load it before the run, or "
                "leave it out"
            ) from error
        if error is not None:
            raise error


_ATTEMPTS = 3


def retry_disturbed(compute: Callable[[], T], again: Callable[[], None]) -> T:
    """The result of `compute`, which is called again, after `again`, where it raises DisturbedError. Raises the last
    such error."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return compute()
        except DisturbedError:
            again()
    return compute()
